//! Records do not depend on how they are cut, and hostile ones end.

use super::*;
use proptest::prelude::*;

/// A stream of these records, each cut into fragments of the given lengths.
fn stream(records: &[Vec<u8>], cuts: &[usize]) -> Vec<u8> {
    let mut stream = Vec::new();
    let mut cuts = cuts.iter().cycle();
    for record in records {
        let mut rest = record.as_slice();
        loop {
            let length = cuts.next().map_or(rest.len(), |cut| rest.len().min(*cut));
            let (now, later) = rest.split_at(length);
            let flag = if later.is_empty() { LAST_FRAGMENT } else { 0 };
            stream.extend((u32::try_from(length).unwrap() | flag).to_be_bytes());
            stream.extend(now);
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
    }
    stream
}

/// Feeds `stream` in pieces; `in_place` says whether gaps are filled directly, as a client does.
fn assemble(stream: &[u8], pieces: &[usize], in_place: bool) -> Result<Vec<Bytes>, RecordError> {
    let mut assembler = RecordAssembler::new(Heap, 10_000);
    let mut records = Vec::new();
    let mut deliver = |record| records.push(record);
    let mut rest = stream;
    for piece in pieces.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (mut now, later) = rest.split_at(rest.len().min(*piece));
        rest = later;
        let gap = assembler.gap();
        if in_place && !gap.is_empty() {
            let length = gap.len().min(now.len());
            gap[..length].copy_from_slice(&now[..length]);
            now = &now[length..];
            assembler.fill(length, &mut deliver);
        }
        assembler.push(now, &mut deliver)?;
    }
    Ok(records)
}

proptest! {
    #[test]
    fn records_do_not_depend_on_fragments_and_reads(
        records in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..6),
        cuts in prop::collection::vec(1..200_usize, 1..5),
        pieces in prop::collection::vec(1..100_usize, 1..5),
        in_place: bool,
    ) {
        let got = assemble(&stream(&records, &cuts), &pieces, in_place);
        prop_assert_eq!(got.unwrap(), records);
    }

    #[test]
    fn noise_is_refused_or_assembled(
        noise in prop::collection::vec(any::<u8>(), 0..2000),
        pieces in prop::collection::vec(1..100_usize, 1..5),
    ) {
        let _ = assemble(&noise, &pieces, true);
    }
}

#[test]
fn records_are_limited() {
    let too_long = |length| Err(RecordError::TooLong { length, limit: 10_000 });
    assert_eq!(assemble(&[0xff, 0xff, 0xff, 0xff], &[9], false), too_long(FRAGMENT_BYTES_MAX));

    let two_fragments = stream(&[vec![0; 10_001]], &[6000]);
    assert_eq!(assemble(&two_fragments, &[6000], false), too_long(10_001));

    let empty_fragments = vec![0; MARK_BYTES * (FRAGMENTS_MAX as usize + 1)];
    assert_eq!(assemble(&empty_fragments, &[100], false), Err(RecordError::Fragments));
}

#[test]
fn a_mark_announces_one_last_fragment() {
    assert_eq!(mark(0x1234), [0x80, 0, 0x12, 0x34]);
}
