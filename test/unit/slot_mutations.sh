#!/usr/bin/env bash
#
# Shows that test_slot can fail: breaks protocol/slot.h in a temporary copy, in one place after the other, and runs the model
# test on it. Exits 1 if a broken copy passes. Not part of `make check`; to be run when slot.h or its test is changed.
set -euo pipefail
cd "$(dirname "$0")/../.."

WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
MISSED=0 CAUGHT=0

# mutate DESCRIPTION OLD NEW: OLD is text that stands once in slot.h (\n for line ends).
mutate() {
    mkdir -p "$WORK/protocol"
    python3 - "$2" "$3" src/protocol/slot.h "$WORK/protocol/slot.h" <<'PYTHON'
import sys
old, new = (text.replace('\\n', '\n') for text in sys.argv[1:3])
source = open(sys.argv[3]).read()
if source.count(old) != 1:
    sys.exit('slot.h has %d times: %s' % (source.count(old), old))
open(sys.argv[4], 'w').write(source.replace(old, new))
PYTHON
    "${CXX:-g++}" -std=c++20 -O2 -w -I"$WORK" -Isrc -Itest/unit -o "$WORK/test" test/unit/test_slot.cpp
    if timeout 300 "$WORK/test" >"$WORK/log"; then
        echo "NOT CAUGHT: $1"
        MISSED=$((MISSED + 1))
    else
        CAUGHT=$((CAUGHT + 1))
        echo "caught: $1: $(grep -c '^not ok' "$WORK/log") scenarios, first: $(grep -m 1 -o '^# test/unit/test_slot.cpp:[0-9]*: .*; the' "$WORK/log" |
            sed 's/^[^ ]* [^ ]* //; s/; the$//') ($(grep -m 1 '^not ok' "$WORK/log" | sed 's/^not ok [0-9]* - //'))"
    fi
}

mutate "claim: store instead of compare-and-swap" \
    'if (!slot.word.compare_exchange_strong(word, mine))\n        return false;' 'slot.word.store(mine);'
mutate "claim: the sequence does not grow" \
    'sequence_of(word) == UINT32_MAX ? 1 : sequence_of(word) + 1' 'sequence_of(word)'
mutate "wait: no second look" \
    '    if (!slot_done(slot, claim))\n        Futex' '        Futex'
mutate "wait: the mark comes after the look" \
    '    slot.waiting.store(sequence_of(claim));\n    if (!slot_done(slot, claim))\n        Futex' \
    '    if (!slot_done(slot, claim)) {slot.waiting.store(sequence_of(claim));\n        } else return; Futex'
mutate "wait: no mark" \
    '    slot.waiting.store(sequence_of(claim));\n' ''
mutate "release: forgets the sequence" \
    'slot.word.store(with_state(claim, SlotState::Free));\n}\n\n/* Gives up' 'slot.word.store(0);\n}\n\n/* Gives up'
mutate "abandon: does not compare session and sequence" \
    'if (with_state(word, SlotState::Free) != with_state(claim, SlotState::Free))' 'if (false)'
mutate "abandon: a request that is worked on becomes free" \
    'state == SlotState::Taken ? SlotState::Abandoned : SlotState::Free' 'SlotState::Free'
mutate "abandon: every request becomes abandoned" \
    'state == SlotState::Taken ? SlotState::Abandoned : SlotState::Free' 'SlotState::Abandoned'
mutate "abandon: store instead of compare-and-swap" \
    'if (slot.word.compare_exchange_strong(word, with_state(word, next)))\n            return;' \
    'slot.word.store(with_state(word, next));return;'
mutate "take: store instead of compare-and-swap" \
    'if (!slot.word.compare_exchange_strong(word, with_state(word, SlotState::Taken)))\n        return false;' \
    'slot.word.store(with_state(word, SlotState::Taken));'
mutate "finish: store instead of compare-and-swap" \
    'if (slot.word.compare_exchange_strong(word, with_state(claim, SlotState::Done))) {' \
    'slot.word.store(with_state(claim, SlotState::Done)); if (true) {'
mutate "finish: look, then store" \
    'if (slot.word.compare_exchange_strong(word, with_state(claim, SlotState::Done))) {' \
    'word = slot.word.load(); if (word == claim) { slot.word.store(with_state(claim, SlotState::Done));'
mutate "finish: an abandoned slot stays so" \
    'else if (word == with_state(claim, SlotState::Abandoned))' 'else if (false)'
mutate "finish: does not wake" \
    '            Futex::wake(slot.waiting);\n    }' '            ;\n    }'
mutate "finish: wakes without clearing the mark" \
    'if (slot.waiting.load() == sleeper && slot.waiting.compare_exchange_strong(sleeper, 0))' \
    'if (slot.waiting.load() == sleeper)'
mutate "finish: takes the mark of a newer claim" \
    'if (slot.waiting.load() == sleeper && slot.waiting.compare_exchange_strong(sleeper, 0))' \
    'if (slot.waiting.exchange(0) == sleeper)'
mutate "finish: wakes, then says done" \
    '    if (slot.word.compare_exchange_strong(word, with_state(claim, SlotState::Done))) {\n        /* From here on the slot may be anybody'"'"'s. */\n        uint32_t sleeper = sequence_of(claim);\n        if (slot.waiting.load() == sleeper && slot.waiting.compare_exchange_strong(sleeper, 0))\n            Futex::wake(slot.waiting);\n    }' \
    '    uint32_t sleeper = sequence_of(claim);\n    if (slot.waiting.load() == sleeper && slot.waiting.compare_exchange_strong(sleeper, 0))\n        Futex::wake(slot.waiting);\n    if (slot.word.compare_exchange_strong(word, with_state(claim, SlotState::Done)))\n        ;'
mutate "reclaim: does not look whose it is" \
    ' && session_of(word) == session)' ')'
mutate "ring: the word before the bit" \
    '    bell.filled[slot / 64].fetch_or(static_cast<uint64_t>(1) << slot % 64);\n    bell.words.fetch_or(static_cast<uint64_t>(1) << slot / 64);' \
    '    bell.words.fetch_or(static_cast<uint64_t>(1) << slot / 64);\n    bell.filled[slot / 64].fetch_or(static_cast<uint64_t>(1) << slot % 64);'
mutate "ring: looks for a sleeper first" \
    '    bell.filled[slot / 64].fetch_or(static_cast<uint64_t>(1) << slot % 64);\n' \
    '    bool sleeps = bell.sleeping.load() != 0 && bell.sleeping.exchange(0) != 0; if (sleeps) Futex::wake(bell.sleeping);\n    bell.filled[slot / 64].fetch_or(static_cast<uint64_t>(1) << slot % 64); if (false)\n    bell.words.fetch_or(0); bell.words.fetch_or(static_cast<uint64_t>(1) << slot / 64); return;\n'
mutate "ring: wakes without clearing the mark" \
    'bell.sleeping.load() != 0 && bell.sleeping.exchange(0) != 0' 'bell.sleeping.load() != 0'
mutate "wake: does nothing" \
    '    bell.sleeping.store(0);\n    Futex::wake(bell.sleeping);\n}' '}'
mutate "wake: only if the mark is there" \
    '    bell.sleeping.store(0);\n    Futex::wake(bell.sleeping);\n}' '    if (bell.sleeping.exchange(0) != 0) Futex::wake(bell.sleeping);\n}'
mutate "collect: clears the words last" \
    'words = bell.words.exchange(0); words != 0; words &= words - 1' \
    'words = bell.words.load(), all = words; words != 0; words &= words - 1, words == 0 ? bell.words.store(0) : void()'
mutate "collect: load and store of the bits" \
    'for (uint64_t bits = bell.filled[w].exchange(0);' 'uint64_t all = bell.filled[w].load(); bell.filled[w].store(0); for (uint64_t bits = all;'
mutate "sleep: no second look" \
    '    if (bell.words.load() == 0)\n        Futex' '        Futex'
mutate "sleep: the mark comes after the look" \
    '    bell.sleeping.store(1);\n    if (bell.words.load() == 0)\n' \
    '    if (bell.words.load() != 0) return;\n    bell.sleeping.store(1);\n'

echo "$CAUGHT caught, $MISSED not caught"
[ "$MISSED" -eq 0 ]
