//! Replies of an NFS server: whatever their bytes, a call of the client ends with an answer or an
//! error, soon, and the client's memory does not grow with them.

#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/larder-remote/tests/it/fuzz.rs"]
mod fuzz;

thread_local! {
    static FUZZED: RefCell<fuzz::Fuzzed> = RefCell::new(fuzz::Fuzzed::begin());
}

fuzz_target!(|input: &[u8]| {
    FUZZED.with_borrow_mut(|fuzzed| fuzzed.feed(input));
});
