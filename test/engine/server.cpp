/*
 * server.cpp: the engine as a process: hello, staging, searches, loads, mirrors of files that vanish, and every way to end.
 */
#include "client.h"

#include <map>
#include <memory>

#include <fcntl.h>
#include <sys/stat.h>

using namespace engine_test;

namespace {

bool exists(const std::string &path)
{
    struct stat about;
    return stat(path.c_str(), &about) == 0;
}

SocketPacket packet_of(SocketMessage type)
{
    SocketPacket packet = {};
    packet.magic = kProtocolMagic;
    packet.version = kProtocolVersion;
    packet.type = type;
    packet.pid = uint32_t(getpid());
    return packet;
}

/* What comes back for these bytes; -1: the connection is closed. */
int32_t answer_to(const EngineProcess &engine, const void *bytes, size_t size, SocketPacket *answer)
{
    int fd = -1, passed = -1;
    soon([&] { return socket_connect(engine.options.socket.c_str(), kConnectMs, &fd) == 0; });
    if (send(fd, bytes, size, MSG_NOSIGNAL) < 0)
        return -2;
    int error = socket_receive(fd, kConnectMs, answer, &passed);
    if (passed >= 0)
        close(passed);
    close(fd);
    return error == 0 ? answer->status : -1;
}

void test_hello()
{
    TEST("hello");
    EngineProcess engine("hello", [](Options *o) { o->generation = 42; });
    Client client;
    CHECK(client.open(engine.options.socket) == 0, "open");
    CHECK(client.connection.generation == 42 && client.connection.area->generation == 42, "generation");
    CHECK(client.connection.slots == 64 && client.connection.session != 0, "slots");
    CHECK(client.connection.area->gpus == 0 && client.connection.area->gpu_reason[0] != 0, "no GPU, and why");
    struct stat about;
    CHECK(stat(engine.options.socket.c_str(), &about) == 0 && (about.st_mode & 0077) == 0, "mode %o", about.st_mode);
    uint64_t beat = client.connection.area->heartbeat_ns;
    CHECK(soon([&] { return client.connection.area->heartbeat_ns > beat; }), "the heart beats");

    TEST("another version, and what is no hello at all, get an answer");
    SocketPacket answer = {};
    SocketPacket packet = packet_of(SocketMessage::Hello);
    packet.version = 99;
    CHECK(answer_to(engine, &packet, sizeof packet, &answer) == int(Status::BadVersion), "version");
    CHECK(answer.version == kProtocolVersion && answer.magic == kProtocolMagic, "ours is told");
    packet = packet_of(SocketMessage::Hello);
    packet.magic = 1;
    CHECK(answer_to(engine, &packet, sizeof packet, &answer) == int(Status::BadVersion), "magic");
    packet = packet_of(SocketMessage::Staging);
    CHECK(answer_to(engine, &packet, sizeof packet, &answer) == int(Status::BadVersion), "not a hello");
    packet = packet_of(SocketMessage(77));
    CHECK(answer_to(engine, &packet, sizeof packet, &answer) == int(Status::BadVersion), "unknown message");
    char rubbish[3000] = "GET / HTTP/1.1";
    CHECK(answer_to(engine, rubbish, 14, &answer) == int(Status::BadVersion), "short");
    CHECK(answer_to(engine, rubbish, sizeof rubbish, &answer) == int(Status::BadVersion), "long");

    TEST("staging memory that could shrink, is too small, or is none");
    auto stage = [&](int memory, uint64_t bytes) {
        SocketPacket staging = packet_of(SocketMessage::Staging), reply = {};
        staging.bytes = bytes;
        int passed = -1;
        socket_send(client.connection.fd, staging, memory);
        if (connection_receive(client.connection.fd, now_ns() + uint64_t(kConnectMs) * 1000000, &reply, &passed) != 0)
            return Status::DeviceLost;
        return Status(reply.status);
    };
    int open_memory = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(ftruncate(open_memory, 4096) == 0, "size");
    CHECK(stage(open_memory, 4096) == Status::BadRequest, "unsealed");
    close(open_memory);
    int memory = -1;
    CHECK(memory_create("sealed", 8192, &memory) == 0, "memory");
    CHECK(ftruncate(memory, 100) != 0, "it cannot shrink");
    CHECK(stage(memory, 8193) == Status::BadRequest, "too small");
    CHECK(stage(memory, 0) == Status::BadRequest, "empty");
    CHECK(stage(memory, uint64_t(1) << 60) == Status::BadRequest, "huge");
    CHECK(stage(memory, 8192) == Status::Ok && stage(memory, 8192) == Status::Ok, "good, twice");
    int pipes[2];
    CHECK(pipe(pipes) == 0 && stage(pipes[0], 8192) == Status::BadRequest, "a pipe");
    close(pipes[0]);
    close(pipes[1]);
    CHECK(stage(-1, 8192) == Status::DeviceLost, "none: disconnected");
    close(memory);

    TEST("a connection that says nothing is closed, others stay");
    Client other;
    other.open(engine.options.socket);
    int silent = -1;
    CHECK(socket_connect(engine.options.socket.c_str(), kConnectMs, &silent) == 0, "connect");
    CHECK(soon([&] { return socket_is_closed(silent); }) && !socket_is_closed(other.connection.fd), "closed");
    close(silent);

    TEST("many sessions come and go, more than slots");
    {
        std::vector<std::unique_ptr<Client>> clients;
        for (int i = 0; i < 200; i++) {
            clients.push_back(std::make_unique<Client>());
            CHECK(clients.back()->open(engine.options.socket) == 0, "session %d", i);
        }
        CHECK(clients[0]->devices().size() == 1, "devices");
        /* All slots are taken by sessions that then die. */
        for (uint32_t i = 0; i < 64; i++) {
            Call call;
            CHECK(call_claim(&clients[i]->caller, &call), "claim");
        }
        Call call;
        CHECK(!call_claim(&clients[99]->caller, &call), "none left");
        for (int i = 0; i < 64; i++)
            clients[i]->close();
        bool all_free = soon([&] { return clients[99]->slots_in_use() == 0; });
        CHECK(all_free, "%u slots leaked", clients[99]->slots_in_use());
    }
    CHECK(engine.stop(SIGTERM) == 0 && !exists(engine.options.socket), "clean end");
    CHECK(other.connection.area->heartbeat_ns == 0 && socket_is_closed(other.connection.fd), "sessions know");
}

void test_search()
{
    TEST("search: cold, behind, right, and refused");
    EngineProcess engine("search");
    Client client(engine);
    TestIndex flat = make_index(1, IndexKind::Flat, 24, 500);
    TestIndex graph = make_index(2, IndexKind::Hnsw, 16, 800);
    CHECK(client.search(flat, flat.row(3), 10) == Status::Cold, "cold");
    CHECK(client.load_index(flat) == Status::Ok && client.load_index(graph) == Status::Ok, "load");
    CHECK(client.load_index(flat) == Status::Current, "current");
    test::Random random(5);
    for (int i = 0; i < 50; i++) {
        for (const TestIndex *index : {&flat, &graph}) {
            std::vector<float> query(index->meta.dimensions);
            for (float &value : query)
                value = random.symmetric() * 16;
            uint32_t k = 1 + random.below(20);
            CHECK(client.search(*index, query.data(), k) == Status::Ok, "status");
            CHECK(plausible(*index, query.data(), client.hits, k, index->nodes()), "answer");
            const auto &search = client.response.search;
            CHECK(search.nodes == index->nodes() && search.epoch == index->meta.epoch && search.width >= 1 && search.first_of_batch == 1,
                  "what is told of it");
        }
        uint32_t node = random.below(graph.nodes());
        CHECK(client.search(graph, graph.row(node), 5, SearchForm::Graph, 400) == Status::Ok, "graph");
        CHECK(client.hits.size() == 5 && client.hits[0].slot == node, "finds itself");
    }
    CHECK(client.search(flat, flat.row(0), 1000) == Status::Ok && client.hits.size() == 500, "k beyond all");
    CHECK(client.search(flat, flat.row(0), 10, SearchForm::Exact, 0, 501) == Status::Behind, "behind");
    CHECK(client.response.search.nodes == 500 && client.response.search.epoch == flat.meta.epoch, "by how much");

    auto refused = [&](const char *what, auto change) {
        Status status = client.ask(Lane::Host, [&](Slot &slot) {
            slot.request.op = Op::Search;
            slot.request.search = {graph.key, SearchForm::Graph, 10, 40, graph.meta.dimensions, 0, 0};
            memset(slot.payload, 0, 1024);
            change(&slot.request);
        });
        CHECK(status == Status::BadRequest && client.response.message[0] != 0, "%s: %d", what, int(status));
    };
    refused("form", [](Request *r) { r->search.form = SearchForm(4); });
    refused("k", [](Request *r) { r->search.k = 0; });
    refused("k", [](Request *r) { r->search.k = kMaxHits + 1; r->search.ef = UINT32_MAX; });
    refused("ef", [](Request *r) { r->search.ef = 9; });
    refused("dimensions", [](Request *r) { r->search.dimensions = 0; });
    refused("dimensions", [](Request *r) { r->search.dimensions = 15; });
    refused("dimensions", [](Request *r) { r->search.dimensions = UINT32_MAX; });
    refused("filter", [](Request *r) { r->search.filter = 1; });
    refused("op", [](Request *r) { r->op = Op::Evict; });
    refused("op", [](Request *r) { r->op = Op(0); });
    refused("graph of a flat index", [&](Request *r) { r->search.index = flat.key; r->search.dimensions = 24; });
    CHECK(client.ask(Lane::Host, [&](Slot &slot) {
        slot.request.op = Op::Search;
        slot.request.search = {graph.key, SearchForm::Graph, kMaxHits, UINT32_MAX, 16, 0, 0};
        memcpy(slot.payload, graph.row(0), 64);
    }) == Status::Ok && client.hits.size() == graph.nodes(), "the widest beam");
    CHECK(client.ask(Lane::Gpu, [&](Slot &slot) {
        slot.request.op = Op::Search;
        slot.request.search = {flat.key, SearchForm::Exact, 10, 0, 24, 0, 0};
    }) == Status::NoDevice, "no GPU");
    CHECK(client.ask(Lane::Control, [&](Slot &slot) {
        slot.request.op = Op::Search;
    }) == Status::BadRequest, "search on the control lane");

    TEST("searches of many sessions at once share batches");
    {
        std::vector<Call> calls(60);
        for (size_t i = 0; i < calls.size(); i++) {
            CHECK(call_claim(&client.caller, &calls[i]), "claim");
            calls[i].slot->request.op = Op::Search;
            calls[i].slot->request.search = {flat.key, SearchForm::Exact, 5, 0, 24, 0, 0};
            memcpy(calls[i].slot->payload, flat.row(uint32_t(i)), 96);
            call_submit(&client.caller, &calls[i], Lane::Host);
        }
        uint32_t firsts = 0, widest = 0;
        for (size_t i = 0; i < calls.size(); i++) {
            while (!call_wait(calls[i], 10000000)) {
            }
            const Response &response = calls[i].slot->response;
            CHECK(response.status == Status::Ok && calls[i].slot->hits[0].slot == i, "answer %zu", i);
            firsts += response.search.first_of_batch;
            widest = std::max(widest, response.search.width);
            call_release(&client.caller, &calls[i]);
        }
        CHECK(firsts >= 1 && firsts <= 60 && widest >= 60 / firsts, "%u batches, the widest %u", firsts, widest);
    }

    TEST("growing: what is written beside searches is seen after its end");
    for (uint32_t step = 0; step < 5; step++) {
        add_rows(&flat, 40, &random);
        CHECK(client.begin(flat) == Status::Ok && client.from_nodes == flat.nodes() - 40, "begin");
        CHECK(client.write_all(flat) == Status::Ok, "write");
        CHECK(client.search(flat, flat.row(flat.nodes() - 1), 1) == Status::Ok && client.response.search.nodes == flat.nodes() - 40,
              "before the end");
        CHECK(client.end() == Status::Ok && client.response.end.bytes > 0, "end");
        CHECK(client.search(flat, flat.row(flat.nodes() - 1), 1, SearchForm::Exact, 0, flat.nodes()) == Status::Ok, "after it");
        CHECK(client.hits[0].slot == flat.nodes() - 1, "found");
    }
    add_rows(&flat, 5000, &random);
    CHECK(client.begin(flat) == Status::Ok && client.from_epoch == 0, "too many for the mirror: a new one");
    CHECK(client.write_all(flat) == Status::Ok && client.end() == Status::Ok, "load");
    CHECK(client.search(flat, flat.row(5000), 1) == Status::Ok && client.hits[0].slot == 5000, "found");

    TEST("lists, and eviction");
    std::vector<MirrorEntry> mirrors = client.mirrors();
    CHECK(mirrors.size() == 2 && client.response.list.total == 2, "two");
    CHECK(mirrors[0].index == flat.key && mirrors[0].nodes == flat.nodes() && mirrors[0].epoch == flat.meta.epoch &&
              mirrors[0].phase == MirrorPhase::Ready && mirrors[0].index_oid == flat.key.file,
          "the flat one");
    /* The thread of the last search may hold a mirror, also one that was replaced, a moment longer than its answer took. */
    CHECK(soon([&] { return client.memory_used() == mirrors[0].bytes + mirrors[1].bytes; }), "memory");
    std::vector<DeviceEntry> devices = client.devices();
    CHECK(devices.size() == 1 && devices[0].mirrors == 2 && devices[0].threads == 4, "device");
    CHECK(client.ask(Lane::Control, [&](Slot &slot) {
        slot.request.op = Op::ListMirrors;
        slot.request.list.first = 1;
    }) == Status::Ok && client.response.count == 1 && client.response.list.total == 2, "second page");
    CHECK(client.evict(flat.key) == Status::Ok && client.response.end.bytes == mirrors[0].bytes, "evict");
    CHECK(client.search(flat, flat.row(0), 1) == Status::Cold && client.mirrors().size() == 1, "gone");
    CHECK(soon([&] { return client.memory_used() == mirrors[1].bytes; }), "memory");
    CHECK(client.slots_in_use() == 0, "%u slots leaked", client.slots_in_use());
    CHECK(engine.stop(SIGTERM) == 0, "clean end");
}

void test_loads()
{
    TEST("loads that break the rules");
    EngineProcess engine("loads");
    Client client(engine);
    TestIndex graph = make_index(2, IndexKind::Hnsw, 16, 300);
    client.load = 12345;
    CHECK(client.write({}) == Status::Cold && client.end() == Status::Cold, "no load");
    CHECK(client.begin(graph) == Status::Ok, "begin");
    CHECK(client.write({{0, 0, 1, 0, 0}}) == Status::BadRequest, "no staging memory");
    CHECK(client.end() == Status::BadRequest, "the load has failed");
    CHECK(connection_stage(&client.connection, 65536, kConnectMs) == 0, "staging");
    auto refused = [&](const char *what, const Run &run) {
        Status begun = client.begin(graph);
        Status written = client.write({run});
        Status ended = client.end();
        CHECK(begun == Status::Ok && written == Status::BadRequest && ended == Status::BadRequest, "%s: %d %d %d", what, int(begun),
              int(written), int(ended));
    };
    uint32_t vectors = uint32_t(Region::Vectors), slots = uint32_t(Region::Slots);
    refused("region", {uint32_t(Region::Twins), 0, 1, 0, 0});
    refused("region", {77, 0, 1, 0, 0});
    refused("region", {65536, 0, 1, 0, 0});
    refused("first", {slots, 1000000, 1, 0, 0});
    refused("first", {slots, UINT32_MAX, UINT32_MAX, 0, 0});
    refused("count", {slots, 0, 1000000, 0, 0});
    refused("offset", {vectors, 0, 1, 0, 65536});
    refused("offset", {vectors, 0, 1, 0, UINT64_MAX - 3});
    refused("offset", {vectors, 0, 2, 0, 65536 - 64});
    refused("alignment", {vectors, 0, 1, 0, 2});
    CHECK(client.begin(graph) == Status::Ok, "begin");
    CHECK(client.ask(Lane::Control, [&](Slot &slot) {
        slot.request.op = Op::LoadWrite;
        slot.request.write = {client.load, kMaxRuns + 1, 0};
    }) == Status::BadRequest && client.end() == Status::BadRequest, "too many runs");
    CHECK(client.begin(graph) == Status::Ok, "begin");
    CHECK(client.write({{vectors, 0, 0, 0, 65536}, {slots, 0, 300, 0, 0}}) == Status::Ok, "nothing is something");
    CHECK(client.end(true) == Status::Ok && client.mirrors().empty(), "given up");
    CHECK(client.ask(Lane::Control, [&](Slot &slot) {
        slot.request.op = Op::LoadBegin;
        slot.request.begin = {graph.key, Lane::Gpu, 1};
        memcpy(slot.payload, &graph.meta, sizeof graph.meta);
        slot.payload[sizeof graph.meta] = 0;
    }) == Status::NoDevice, "no such device");
    CHECK(client.ask(Lane::Control, [&](Slot &slot) {
        slot.request.op = Op::LoadBegin;
        slot.request.begin = {graph.key, Lane::Control, 1};
        memcpy(slot.payload, &graph.meta, sizeof graph.meta);
        slot.payload[sizeof graph.meta] = 0;
    }) == Status::BadRequest, "no lane of mirrors");
    CHECK(client.ask(Lane::Control, [&](Slot &slot) {
        slot.request.op = Op::LoadBegin;
        slot.request.begin = {graph.key, Lane::Host, 1};
        memcpy(slot.payload, &graph.meta, sizeof graph.meta);
        memset(slot.payload + sizeof graph.meta, 'x', kQueryBytes - sizeof graph.meta);
    }) == Status::BadRequest, "endless path");

    TEST("a session that dies in a load does not keep others from it");
    {
        Client dying(engine);
        CHECK(dying.begin(graph) == Status::Ok, "begin");
        CHECK(client.begin(graph) == Status::Busy, "busy");
    }
    Status status = Status::Busy;
    soon([&] { return (status = client.begin(graph)) != Status::Busy; });
    CHECK(status == Status::Ok && client.end(true) == Status::Ok, "free");

    TEST("an abandoned begin leaves nothing behind");
    for (int i = 0; i < 30; i++) {
        Call call;
        CHECK(call_claim(&client.caller, &call), "claim");
        call.slot->request.op = Op::LoadBegin;
        call.slot->request.begin = {graph.key, Lane::Host, 1};
        memcpy(call.slot->payload, &graph.meta, sizeof graph.meta);
        call.slot->payload[sizeof graph.meta] = 0;
        call_submit(&client.caller, &call, Lane::Control);
        if (i % 2)
            usleep(uint32_t(i) * 20);
        call_abandon(&call);
    }
    /* One that a thread is still about is in the way (Busy), or takes the place of this load (Cold), until it finds that nobody waits. */
    soon([&] { return (status = client.load_index(graph)) != Status::Busy && status != Status::Cold; });
    CHECK(status == Status::Ok, "load: %d", int(status));
    CHECK(client.evict(graph.key) == Status::Ok, "evict");

    TEST("a write that is given up half way spoils its load");
    for (int i = 0; i < 20; i++) {
        CHECK(client.begin(graph) == Status::Ok, "begin");
        Call call;
        CHECK(call_claim(&client.caller, &call), "claim");
        Run run = {vectors, 0, 100, 0, 0};
        call.slot->request.op = Op::LoadWrite;
        call.slot->request.write = {client.load, 1, 0};
        memcpy(call.slot->payload, &run, sizeof run);
        call_submit(&client.caller, &call, Lane::Control);
        if (i % 4 != 0)
            usleep(uint32_t(i) * 3);
        call_abandon(&call);
        Status ended = client.end();
        /* Ok: the engine never saw the write, or had done it. */
        CHECK(ended == Status::BadRequest || ended == Status::Ok, "end %d", int(ended));
        if (ended == Status::Ok)
            CHECK(client.evict(graph.key) == Status::Ok, "evict");
    }

    TEST("files that vanish take their mirrors along");
    std::string path = "/tmp/vecgpu-test-file-" + std::to_string(getpid());
    auto put = [&](const char *content) {
        FILE *out = fopen(path.c_str(), "w");
        fputs(content, out);
        fclose(out);
    };
    auto wait_for = [&](size_t count) { return soon([&] { return client.mirrors().size() == count; }); };
    put("page");
    CHECK(client.load_index(graph, path.c_str()) == Status::Ok, "load");
    usleep(1300000);
    CHECK(client.mirrors().size() == 1, "it stays");
    put("");
    CHECK(wait_for(0), "truncated");
    put("page");
    CHECK(client.load_index(graph, path.c_str()) == Status::Ok, "load");
    unlink(path.c_str());
    CHECK(wait_for(0), "dropped");
    CHECK(soon([&] { return client.memory_used() == 0; }), "memory");
    bool all_free = soon([&] { return client.slots_in_use() == 0; });
    CHECK(all_free, "%u slots leaked", client.slots_in_use());
    CHECK(engine.stop(SIGTERM) == 0, "clean end");
}

/* Lines of the log by level. `text`: all that was read of it so far. */
std::map<char, int> read_log(int fd, std::string *text)
{
    std::map<char, int> lines;
    char part[4096];
    for (ssize_t got; (got = read(fd, part, sizeof part)) > 0;)
        text->append(part, size_t(got));
    for (size_t at = 0, end; (end = text->find('\n', at)) != std::string::npos; at = end + 1)
        lines[(*text)[at]]++;
    return lines;
}

void test_endings()
{
    TEST("log lines and heartbeats for the supervisor; the end of the lifeline");
    {
        int log[2], life[2];
        CHECK(pipe2(log, O_CLOEXEC) == 0 && pipe2(life, O_CLOEXEC) == 0, "pipes");
        fcntl(log[0], F_SETFL, O_NONBLOCK);
        uint64_t began = now_ns();
        EngineProcess engine(
            "life",
            [&](Options *o) {
                o->log_fd = log[1];
                o->life_fd = life[0];
            },
            [&] { close(life[1]); });
        Client client(engine);
        CHECK(client.devices().size() == 1, "serves");
        std::string text;
        std::map<char, int> lines;
        CHECK(soon([&] { return (lines = read_log(log[0], &text))['B'] >= 4; }), "the heart beats");
        /* Two a second, and no more than four when a tick that was late is made up for. */
        uint64_t most = (now_ns() - began) / 250000000 + 2;
        CHECK(uint64_t(lines['B']) <= most && lines['L'] >= 1 && lines['W'] == 0, "%d beats, %d lines", lines['B'], lines['L']);
        close(life[0]);
        close(life[1]);
        CHECK(engine.stop(0) == 0 && !exists(engine.options.socket), "ended by itself");
        CHECK(client.connection.area->heartbeat_ns == 0, "sessions know");
        close(log[0]);
        close(log[1]);
    }

    TEST("nobody reads the log: the engine does not care");
    {
        int log[2];
        CHECK(pipe2(log, O_CLOEXEC) == 0, "pipe");
        fcntl(log[0], F_SETPIPE_SZ, 4096);
        EngineProcess engine("deaf", [&](Options *o) { o->log_fd = log[1]; });
        for (int i = 0; i < 300; i++) {
            Client client(engine); /* a line each */
            if (i == 299)
                CHECK(client.devices().size() == 1, "serves");
        }
        close(log[0]); /* and now it is broken */
        Client client(engine);
        CHECK(client.devices().size() == 1, "serves");
        CHECK(engine.stop(SIGINT) == 0, "clean end");
        close(log[1]);
    }

    TEST("the file of a dead engine is no obstacle; a place that cannot be is an error");
    {
        EngineProcess first("again");
        Client client(first);
        CHECK(first.stop(SIGKILL) == 1009 && exists(first.options.socket), "killed");
        CHECK(socket_is_closed(client.connection.fd), "sessions know");
        first.start();
        CHECK(Client(first).devices().size() == 1, "serves");
        EngineProcess nowhere("x", [](Options *o) { o->socket = "/nowhere/at/all.sock"; });
        CHECK(nowhere.stop(0) == 1, "a folder that is not there");
        EngineProcess longname("x", [](Options *o) { o->socket = "/tmp/" + std::string(200, 'x'); });
        CHECK(longname.stop(0) == 1, "a long name");
    }

    std::string faults = "/tmp/vecgpu-test-faults-" + std::to_string(getpid());
    auto fault = [&](const char *text) {
        FILE *out = fopen((faults + ".new").c_str(), "w");
        fputs(text, out);
        fclose(out);
        rename((faults + ".new").c_str(), faults.c_str());
    };
    setenv("VECGPU_FAULT_FILE", faults.c_str(), 1);
    TestIndex flat = make_index(1, IndexKind::Flat, 24, 200);

    TEST("a device without memory, with errors, slow: the request fails, the engine lives");
    {
        fault("");
        EngineProcess engine("faults");
        Client client(engine);
        CHECK(client.load_index(flat) == Status::Ok, "load");
        fault("search error 2\n");
        CHECK(client.search(flat, flat.row(0), 5) == Status::DeviceError && client.response.message[0] != 0, "error");
        CHECK(client.search(flat, flat.row(0), 5) == Status::DeviceError, "error");
        CHECK(client.search(flat, flat.row(0), 5) == Status::Ok, "right again");
        fault("search oom 1\n");
        CHECK(client.search(flat, flat.row(0), 5) == Status::NoMemory, "no memory and nothing to evict");
        fault("search slow 3\n");
        CHECK(client.search(flat, flat.row(0), 5) == Status::Ok, "slow");
        TestIndex other = make_index(2, IndexKind::Flat, 24, 200);
        fault("create oom\n");
        CHECK(client.load_index(other) == Status::NoMemory, "create");
        fault("write error 1\n");
        CHECK(client.load_index(other) == Status::DeviceError, "write");
        fault("commit error 1\n");
        CHECK(client.load_index(other) == Status::DeviceError, "commit");
        fault("");
        /* The other one is there, unless it was not searched for a second and made room. */
        std::vector<MirrorEntry> mirrors = client.mirrors();
        CHECK(mirrors.empty() || (mirrors.size() == 1 && mirrors[0].index == flat.key), "no half mirrors");
        CHECK(client.load_index(other) == Status::Ok, "load");
        CHECK(client.slots_in_use() == 0, "%u slots leaked", client.slots_in_use());
        CHECK(engine.stop(SIGTERM) == 0, "clean end");
    }

    TEST("a device that is lost ends the engine, whatever the call");
    for (const char *call : {"search", "create", "write", "commit"}) {
        fault("");
        EngineProcess engine("lost");
        Client client(engine);
        CHECK(client.load_index(flat) == Status::Ok, "load");
        fault((std::string(call) + " lost\n").c_str());
        if (strcmp(call, "search") == 0) {
            CHECK(client.search(flat, flat.row(0), 5) == Status::DeviceLost, "search");
        } else {
            TestIndex other = make_index(2, IndexKind::Flat, 24, 200);
            client.load_index(other);
        }
        int status = engine.stop(0);
        CHECK(status == 4 && !exists(engine.options.socket), "%s: status %d", call, status);
        CHECK(client.connection.area->heartbeat_ns == 0, "sessions know");
    }

    TEST("a call that does not return ends the engine after its limit, not before");
    for (const char *call : {"search", "write"}) {
        /* Others are served until then: a machine that is too busy for that within a second gets more. */
        bool served = false;
        for (uint64_t limit_ms : {1000, 3000, 9000}) {
            if (served)
                break;
            setenv("VECGPU_STALL_MS", std::to_string(limit_ms).c_str(), 1);
            fault("");
            EngineProcess engine("hang");
            Client client(engine);
            TestIndex other = make_index(2, IndexKind::Flat, 24, 200);
            if (client.load_index(flat) != Status::Ok || client.begin(other) != Status::Ok ||
                connection_stage(&client.connection, 65536, kConnectMs) != 0)
                continue; /* held up for so long that it was taken for a hang */
            fault((std::string(call) + " hang\n").c_str());
            uint64_t began = now_ns();
            Call hung;
            bool search = strcmp(call, "search") == 0;
            bool taken = client.start(search ? Lane::Host : Lane::Control, &hung, [&](Slot &slot) {
                slot.request.op = search ? Op::Search : Op::LoadWrite;
                if (search) {
                    slot.request.search = {flat.key, SearchForm::Exact, 5, 0, flat.meta.dimensions, 0, 0};
                    memcpy(slot.payload, flat.row(0), flat.meta.dimensions * sizeof(float));
                } else {
                    Run run = {uint32_t(Region::Slots), 0, 100, 0, 0};
                    slot.request.write = {client.load, 1, 0};
                    memcpy(slot.payload, &run, sizeof run);
                }
            });
            CHECK(taken, "taken");
            Client second;
            served = second.open(engine.options.socket, false) == 0 && second.devices().size() == 1;
            int status = engine.stop(0);
            CHECK(status == 3 && !exists(engine.options.socket), "status %d", status);
            CHECK(!call_done(hung), "no answer");
            uint64_t took = now_ns() - began;
            CHECK(took >= limit_ms * 1000000, "%llu ms", static_cast<unsigned long long>(took / 1000000));
        }
        CHECK(served, "%s: others are served meanwhile", call);
    }
    unsetenv("VECGPU_STALL_MS");

    TEST("an end while a call does not return");
    {
        fault("");
        EngineProcess engine("stuck", {}, {}, true);
        Client client(engine);
        CHECK(client.load_index(flat) == Status::Ok, "load");
        fault("search hang\n");
        Call hung;
        CHECK(client.start(Lane::Host, &hung, [&](Slot &slot) {
            slot.request.op = Op::Search;
            slot.request.search = {flat.key, SearchForm::Exact, 5, 0, flat.meta.dimensions, 0, 0};
            memcpy(slot.payload, flat.row(0), flat.meta.dimensions * sizeof(float));
        }), "taken");
        int status = engine.stop(SIGTERM);
#if defined(__SANITIZE_THREAD__)
        status = status == 66 ? 0 : status; /* it minds that threads were not joined */
#endif
        CHECK(status == 0 && !exists(engine.options.socket), "status %d", status);
    }
    unlink(faults.c_str());
}

} // namespace

int main()
{
    unsetenv("VECGPU_FAULT_FILE");
    unsetenv("VECGPU_STALL_MS");
    test_hello();
    test_search();
    test_loads();
    test_endings();
    return test::finish();
}
