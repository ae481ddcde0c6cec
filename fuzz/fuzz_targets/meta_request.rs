//! Calls to a metadata server: whatever they are, they are answered or refused, the server goes on,
//! and nothing is wrong with its volume.

#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/larder-meta/tests/it/fuzz.rs"]
mod fuzz;

thread_local! {
    static FUZZED: RefCell<fuzz::Fuzzed> = RefCell::new(fuzz::Fuzzed::begin());
}

fuzz_target!(|input: &[u8]| {
    FUZZED.with_borrow_mut(|fuzzed| fuzzed.feed(input));
});
