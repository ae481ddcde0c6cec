//! Arguments of which only the session and the sequence are sure to be valid.

use larder_wire::Procedure;
use larder_wire::meta::calls;
use larder_wire::meta::words::Sequence;
use larder_wire::xdr::{Encode, Encoder};

/// Whether a call of a procedure uses a slot.
fn bears_sequence(procedure: u32) -> bool {
    let reads = [1, 2, 3, 4, 6, 9, 15, 21, 22, 23, 24, 26, 29, 31, 32, 33, 34, 36, 37, 39];
    procedure != 0 && !reads.contains(&procedure)
}

/// A session or a number in a slot, and words.
pub(crate) fn anything(out: &mut Encoder, procedure: u32, sequence: Sequence, words: &[u8]) {
    if bears_sequence(procedure) {
        sequence.encode(out);
    } else if procedure != calls::Session::NUMBER {
        sequence.session.encode(out);
    }
    words.chunks(2).for_each(|word| put(out, word));
}

/// Writes a word of arguments: its kind, and its value.
fn put(out: &mut Encoder, word: &[u8]) {
    let [what, which] = [word[0], word.get(1).copied().unwrap_or(0)];
    let which = u64::from(which);
    match what % 8 {
        // A file, an open file, a cookie; bytes at blocks and beside them; a name; any number.
        0 => out.put_u64(1 + which % 16),
        1 => out.put_u64(which % 64 * 4096),
        2 => out.put_u64(which * 1000),
        3 => out.put_u64(u64::MAX / (which + 1)),
        4 => out.put_slice(&b"abcd.."[..1 + which as usize % 6]),
        5 => out.put_slice([&b"user."[..], b"trusted.x", b"a", b"b"][which as usize % 4]),
        6 => out.put_u32(which as u32 % 4),
        _ => out.put_u32(which as u32 * 37),
    }
}
