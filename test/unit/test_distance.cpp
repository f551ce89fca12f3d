/*
 * test_distance.cpp: every kernel table that this CPU can run against sums in double; keys, operators, conversions.
 */
#include "core/distance_tables.h"

#include "test.h"

#include <cfloat>
#include <cmath>
#include <vector>

using namespace vecgpu;

static const Storage kStorages[] = {Storage::Float32, Storage::Float16, Storage::BFloat16, Storage::Int8};
static const char *const kStorageNames[] = {"", "float32", "float16", "bfloat16", "int8"};
static const Metric kMetrics[] = {Metric::L2, Metric::InnerProduct, Metric::Cosine};

/* Rows on their own heap block of the exact size, at an address that is 4 but not 8 modulo 16: ASan sees any overrun. */
struct Row {
    std::vector<uint8_t> block;
    explicit Row(size_t bytes) : block(bytes + 4) {}
    void *data() { return block.data() + 4; }
    float *floats() { return reinterpret_cast<float *>(block.data() + 4); }
};

static std::vector<uint32_t> dimensions_to_test()
{
    std::vector<uint32_t> all;
    for (uint32_t d = 1; d <= 300; d++)
        all.push_back(d);
    for (uint32_t d : {1999u, 2000u, 2001u, 16000u})
        all.push_back(d);
    return all;
}

static void test_kernels(const Kernels &table)
{
    test::Random random(1);
    for (Storage storage : kStorages) {
        char name[64];
        snprintf(name, sizeof name, "%s %s against double", table.name, kStorageNames[int(storage)]);
        TEST(name);
        for (uint32_t d : dimensions_to_test()) {
            Row query(4 * d), source(4 * d), row(row_bytes(storage, d));
            for (uint32_t i = 0; i < d; i++) {
                query.floats()[i] = random.symmetric();
                source.floats()[i] = random.symmetric() * 3;
            }
            CHECK(encode_row(storage, source.floats(), d, row.data(), nullptr) == EncodeStatus::Ok, "encode d=%u", d);
            std::vector<float> decoded(d);
            decode_row(storage, row.data(), d, decoded.data());
            double l2 = 0, dot = 0, norm2 = 0, size = 0, l1 = 0;
            for (uint32_t i = 0; i < d; i++) {
                double a = query.floats()[i], b = decoded[i];
                l2 += (a - b) * (a - b);
                dot += a * b;
                size += std::fabs(a * b);
                norm2 += b * b;
                l1 += std::fabs(a - b);
            }
            int s = int(storage);
            double tolerance = 2e-6;
            float got = table.l2_squared[s](query.floats(), row.data(), d);
            CHECK(std::fabs(got - l2) <= tolerance * l2, "l2 d=%u: %.9g, right %.9g", d, got, l2);
            got = table.dot[s](query.floats(), row.data(), d);
            CHECK(std::fabs(got - dot) <= tolerance * size, "dot d=%u: %.9g, right %.9g", d, got, dot);
            DotNorm both = table.dot_norm[s](query.floats(), row.data(), d);
            CHECK(std::fabs(both.dot - dot) <= tolerance * size, "dot_norm d=%u: %.9g, right %.9g", d, both.dot, dot);
            CHECK(std::fabs(both.norm2 - norm2) <= tolerance * norm2, "norm2 d=%u: %.9g, right %.9g", d, both.norm2,
                  norm2);
            if (storage == Storage::Float32) {
                got = table.l1(query.floats(), row.floats(), d);
                CHECK(std::fabs(got - l1) <= tolerance * l1, "l1 d=%u: %.9g, right %.9g", d, got, l1);
                CHECK(table.l2_squared[s](row.floats(), query.data(), d) ==
                          table.l2_squared[s](query.floats(), row.data(), d),
                      "l2 symmetric d=%u", d);
                CHECK(table.dot[s](row.floats(), query.data(), d) == table.dot[s](query.floats(), row.data(), d),
                      "dot symmetric d=%u", d);
                CHECK(table.dot_norm[s](row.floats(), query.data(), d).dot == both.dot, "dot_norm symmetric d=%u", d);
                CHECK(table.dot_norm[s](row.floats(), row.data(), d).dot == both.norm2, "norm is its own dot d=%u", d);
                CHECK(table.l2_squared[s](row.floats(), row.data(), d) == 0, "l2 of equal rows d=%u", d);
            }
        }
    }
}

static void test_operators()
{
    TEST("operators are symmetric and equal exact_distance bit for bit");
    test::Random random(2);
    for (uint32_t d : dimensions_to_test()) {
        Row a(4 * d), b(4 * d);
        float scale = d % 5 == 0 ? 1e-25f : d % 5 == 1 ? 1e25f : 1;
        for (uint32_t i = 0; i < d; i++) {
            a.floats()[i] = random.symmetric() * scale;
            b.floats()[i] = random.symmetric() * scale;
        }
        for (Metric metric : kMetrics) {
            Query from_a = make_query(a.floats(), d, metric, Storage::Float32);
            Query from_b = make_query(b.floats(), d, metric, Storage::Float32);
            double ab = exact_distance(from_a, b.data()), ba = exact_distance(from_b, a.data());
            double sql = metric == Metric::L2             ? l2_distance(a.floats(), b.floats(), d)
                         : metric == Metric::InnerProduct ? -inner_product(a.floats(), b.floats(), d)
                                                          : cosine_distance(a.floats(), b.floats(), d);
            CHECK(memcmp(&ab, &ba, sizeof ab) == 0, "metric %d d=%u: %.17g and %.17g", int(metric), d, ab, ba);
            CHECK(memcmp(&ab, &sql, sizeof ab) == 0, "metric %d d=%u: %.17g, operator %.17g", int(metric), d, ab, sql);
            double of_key = key(from_a, b.data());
            if (scale == 1) {
                double right = metric == Metric::L2 ? ab * ab : ab;
                CHECK(std::fabs(of_key - right) <= 1e-5 * (1 + std::fabs(right)), "key metric %d d=%u: %g, right %g",
                      int(metric), d, of_key, right);
            }
        }
        CHECK(l1_distance(a.floats(), b.floats(), d) == l1_distance(b.floats(), a.floats(), d), "l1 d=%u", d);
    }
}

static void near(const char *what, double got, double right)
{
    CHECK(std::fabs(got - right) <= 1e-6 * std::fabs(right), "%s: %.17g, right %.17g", what, got, right);
}

static void test_range()
{
    TEST("underflow and overflow");
    for (float scale : {1e-40f, 1e-30f, 1e-20f, 1e-10f, 1.0f, 1e18f, 1e20f, 1e30f, 1e38f}) {
        for (uint32_t d : {2u, 3u, 100u, 16000u}) {
            std::vector<float> a(d, 0), b(d, 0);
            a[0] = 3 * scale;
            b[0] = 3 * scale; /* beside a by 4 units in another component */
            b[d - 1] = -1 * scale;
            double s = scale;
            near("l2", l2_distance(a.data(), b.data(), d), s);
            near("dot", inner_product(a.data(), b.data(), d), double(a[0]) * double(b[0]));
            near("l1", l1_distance(a.data(), b.data(), d), std::fabs(double(b[d - 1])));
            double cosine = double(a[0]) * b[0] /
                            (std::fabs(double(a[0])) * std::sqrt(double(b[0]) * b[0] + double(b[d - 1]) * b[d - 1]));
            near("cosine", cosine_distance(a.data(), b.data(), d), 1 - cosine);
            for (Metric metric : kMetrics) {
                float k = key(make_query(a.data(), d, metric, Storage::Float32), b.data());
                CHECK(std::fabs(k) <= FLT_MAX, "key is finite, scale %g", s);
            }
            near("cosine key", key(make_query(a.data(), d, Metric::Cosine, Storage::Float32), b.data()), 1 - cosine);
        }
    }

    TEST("keys at the ends of the range");
    float big[2] = {3e38f, 3e38f}, negative[2] = {-3e38f, -3e38f}, mixed[2] = {3e38f, -3e38f};
    CHECK(key(make_query(big, 2, Metric::L2, Storage::Float32), negative) == FLT_MAX, "l2");
    CHECK(key(make_query(big, 2, Metric::InnerProduct, Storage::Float32), big) == -FLT_MAX, "far positive dot");
    CHECK(key(make_query(big, 2, Metric::InnerProduct, Storage::Float32), negative) == FLT_MAX, "far negative dot");
    CHECK(key(make_query(big, 2, Metric::InnerProduct, Storage::Float32), mixed) == 0, "inf - inf");
    near("cosine of opposite", key(make_query(big, 2, Metric::Cosine, Storage::Float32), negative), 2);
    near("l1", l1_distance(big, negative, 2), 4 * double(3e38f));

    TEST("zero vectors");
    for (uint32_t d : {1u, 7u, 128u, 2001u}) {
        std::vector<float> zero(d, 0), one(d, 1);
        CHECK(l2_distance(zero.data(), zero.data(), d) == 0, "l2");
        CHECK(inner_product(zero.data(), one.data(), d) == 0, "dot");
        CHECK(l1_distance(zero.data(), zero.data(), d) == 0, "l1");
        CHECK(std::isnan(cosine_distance(zero.data(), one.data(), d)), "cosine, zero first");
        CHECK(std::isnan(cosine_distance(one.data(), zero.data(), d)), "cosine, zero second");
        for (Storage storage : kStorages) {
            Row row(row_bytes(storage, d)), ones(row_bytes(storage, d));
            encode_row(storage, zero.data(), d, row.data(), nullptr);
            encode_row(storage, one.data(), d, ones.data(), nullptr);
            CHECK(key(make_query(one.data(), d, Metric::Cosine, storage), row.data()) == 2, "row key d=%u", d);
            CHECK(key(make_query(zero.data(), d, Metric::Cosine, storage), ones.data()) == 2, "query key d=%u", d);
        }
        CHECK(std::fabs(cosine_distance(one.data(), one.data(), d)) < 1e-12, "cosine of itself");
    }
}

static void test_conversions()
{
    TEST("float16 decode, all 65,536");
    for (uint32_t h = 0; h < 65536; h++) {
        float got = half_to_float(uint16_t(h));
        float right;
        bool nan = (h & 0x7fff) > 0x7c00;
        if ((h & 0x7fff) == 0x7c00) {
            right = INFINITY;
        } else {
            int exponent = int(h >> 10 & 31);
            right = float(exponent ? std::ldexp(1024 + (h & 1023), exponent - 25) : std::ldexp(h & 1023, -24));
        }
        if (h & 0x8000)
            right = -right;
        CHECK(nan ? std::isnan(got) : memcmp(&got, &right, 4) == 0, "%04x: %g, right %g", h, got, right);
    }

    TEST("float16 encode rounds to nearest even");
#if defined(__FLT16_MAX__) && !defined(__clang__)
    auto reference = [](float x) {
        _Float16 half = _Float16(x);
        uint16_t bits;
        memcpy(&bits, &half, 2);
        return bits;
    };
#else
    /* The nearest of all halves by search over the table; ties to the even code. */
    auto reference = [](float x) {
        uint16_t sign = std::signbit(x) ? 0x8000 : 0;
        double m = std::fabs(double(x));
        uint32_t low = 0, high = 0x7c00;
        auto value = [](uint32_t h) { return h == 0x7c00 ? 65536.0 : double(half_to_float(uint16_t(h))); };
        if (m >= 65536)
            return uint16_t(sign | 0x7c00);
        while (high - low > 1) {
            uint32_t middle = (low + high) / 2;
            (value(middle) <= m ? low : high) = middle;
        }
        double below = m - value(low), above = value(high) - m;
        return uint16_t(sign | (below < above || (below == above && low % 2 == 0) ? low : high));
    };
#endif
    test::Random random(3);
    for (uint32_t h = 0; h < 0x7c00; h++) {
        float a = half_to_float(uint16_t(h)), b = h + 1 < 0x7c00 ? half_to_float(uint16_t(h + 1)) : 65536;
        float middle = a / 2 + b / 2;
        for (float x :
             {a, middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f), a + (b - a) * random.uniform()})
            for (float y : {x, -x})
                CHECK(float_to_half(y) == reference(y), "%.9g: %04x, right %04x", y, float_to_half(y), reference(y));
    }
    for (float x : {0.0f, -0.0f, 1e-45f, 2.98e-8f, 65519.99f, 65520.0f, 1e30f, INFINITY, -INFINITY})
        CHECK(float_to_half(x) == reference(x), "%.9g: %04x, right %04x", x, float_to_half(x), reference(x));
    for (int i = 0; i < 1000000; i++) {
        uint32_t bits = uint32_t(random.next());
        float x;
        memcpy(&x, &bits, 4);
        if (!std::isnan(x))
            CHECK(float_to_half(x) == reference(x), "%.9g: %04x, right %04x", x, float_to_half(x), reference(x));
        else
            CHECK(std::isnan(half_to_float(float_to_half(x))), "NaN stays NaN");
    }

    TEST("bfloat16 encode rounds to nearest even");
    for (int i = 0; i < 1000000; i++) {
        uint32_t bits = uint32_t(random.next());
        if (i % 4 == 0)
            bits = (bits & 0xffff0000) | 0x8000; /* exactly half way */
        float x;
        memcpy(&x, &bits, 4);
        uint16_t got = float_to_bfloat16(x);
        if (std::isnan(x)) {
            CHECK((got & 0x7fff) > 0x7f80, "NaN stays NaN");
            continue;
        }
        uint32_t low = bits & 0xffff, right = bits >> 16;
        if (low > 0x8000 || (low == 0x8000 && (right & 1)))
            right++;
        CHECK(got == right, "%08x: %04x, right %04x", bits, got, right);
    }

    TEST("encode refuses what does not fit, pads with zeros");
    uint32_t bad = 99;
    float wide[3] = {1, 65519, 65520}, huge[3] = {1, 3.39e38f, 3.4e38f};
    uint16_t out[4];
    CHECK(encode_row(Storage::Float16, wide, 3, out, &bad) == EncodeStatus::OutOfRange && bad == 2, "float16: %u", bad);
    CHECK(encode_row(Storage::BFloat16, huge, 3, out, &bad) == EncodeStatus::OutOfRange && bad == 2, "bfloat16");
    CHECK(encode_row(Storage::Float16, wide, 3, out, nullptr) == EncodeStatus::OutOfRange, "no place to tell");
    memset(out, 0xff, sizeof out);
    CHECK(encode_row(Storage::Float16, wide, 1, out, nullptr) == EncodeStatus::Ok && out[1] == 0, "padding");
    uint8_t bytes[12];
    memset(bytes, 0xff, sizeof bytes);
    float five[5] = {1, -2, 3, -4, 5};
    CHECK(row_bytes(Storage::Int8, 5) == 12, "int8 row");
    CHECK(encode_row(Storage::Int8, five, 5, bytes, nullptr) == EncodeStatus::Ok, "int8");
    CHECK(bytes[9] == 0 && bytes[10] == 0 && bytes[11] == 0, "int8 padding");

    TEST("int8 is within half a step, exact at the largest component");
    for (int round = 0; round < 2000; round++) {
        uint32_t d = 1 + random.below(64);
        std::vector<float> vector(d), back(d);
        float scale = std::ldexp(1.0f, int(random.below(250)) - 124), largest = 0;
        for (float &x : vector) {
            x = random.symmetric() * scale;
            largest = std::fmax(largest, std::fabs(x));
        }
        Row row(row_bytes(Storage::Int8, d));
        CHECK(encode_row(Storage::Int8, vector.data(), d, row.data(), nullptr) == EncodeStatus::Ok, "encode");
        decode_row(Storage::Int8, row.data(), d, back.data());
        for (uint32_t i = 0; i < d; i++)
            CHECK(std::fabs(vector[i] - back[i]) <= largest / 127 * 0.5001f, "%g came back as %g", vector[i], back[i]);
    }
    float denormal[2] = {1e-45f, -1e-45f}, back[2];
    encode_row(Storage::Int8, denormal, 2, bytes, nullptr);
    decode_row(Storage::Int8, bytes, 2, back);
    CHECK(back[0] == 0 && back[1] == 0, "a scale of zero");
}

int main()
{
    const Kernels *tables[3];
    int n = available_kernels(tables);
    TEST("dispatch");
    CHECK(n >= 1 && n <= 3, "%d tables", n);
    CHECK(&kernels() == tables[0], "the best is chosen");
    test::note("this CPU runs %s first of %d", tables[0]->name, n);
    for (int i = 0; i < n; i++)
        test_kernels(*tables[i]);
    test_operators();
    test_range();
    test_conversions();
    return test::finish();
}
