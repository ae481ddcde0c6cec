//! Messages to a disk: whatever the bytes, they are answered or refused, nothing is changed that
//! the sender has no capability for, and memory does not grow with them.

#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/larder-disk/tests/it/fuzz.rs"]
mod fuzz;

thread_local! {
    static FUZZED: RefCell<fuzz::Fuzzed> = RefCell::new(fuzz::Fuzzed::begin());
}

fuzz_target!(|input: &[u8]| {
    FUZZED.with_borrow_mut(|fuzzed| {
        fuzzed.feed(input);
    });
});
