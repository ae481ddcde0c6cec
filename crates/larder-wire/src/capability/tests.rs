//! Every small list of extents, and every small range.

use super::*;
use crate::sample::check_types;
use crate::xdr::to_segments;

check_types!(capabilities_survive: Extent, Extents, Capability);

fn extent(offset: u64, length: u64) -> Extent {
    Extent::new(offset, length).unwrap()
}

/// All extents of a disk of `size` bytes, and those that are none.
fn pairs(size: u64) -> impl Iterator<Item = (u64, u64)> + Clone {
    (0..size).flat_map(move |offset| (0..=size - offset).map(move |length| (offset, length)))
}

#[test]
fn what_extents_cover_is_what_each_byte_says() {
    let lists = pairs(6).flat_map(|first| pairs(6).map(move |second| [first, second]));
    for list in lists {
        let extents: Result<Vec<Extent>, _> =
            list.iter().map(|(offset, length)| Extent::new(*offset, *length)).collect();
        let is_good = list[0].1 > 0 && list[1].1 > 0 && list[0].0 + list[0].1 <= list[1].0;
        let extents = extents.and_then(Extents::new);
        assert_eq!(extents.is_ok(), is_good, "{list:?}");
        let Ok(extents) = extents else { continue };
        let has =
            |byte| list.iter().any(|(offset, length)| (*offset..offset + length).contains(&byte));
        for (offset, length) in pairs(8).filter(|(_, length)| *length > 0) {
            let all = (offset..offset + length).all(has);
            assert_eq!(extents.cover(extent(offset, length)), all, "{list:?} {offset} {length}");
        }
    }
}

#[test]
fn extents_that_cannot_be_do_not_decode() {
    let table: [(&[(u64, u64)], ExtentsError); 7] = [
        (&[], ExtentsError::None),
        (&[(5, 0)], ExtentsError::Empty),
        (&[(u64::MAX, 1)], ExtentsError::Overflow),
        (&[(1, u64::MAX)], ExtentsError::Overflow),
        (&[(0, 10), (9, 1)], ExtentsError::Order),
        (&[(10, 10), (0, 10)], ExtentsError::Order),
        (&[(0, 10), (0, 10)], ExtentsError::Order),
    ];
    for (list, error) in table {
        let mut wire = (list.len() as u32).to_be_bytes().to_vec();
        for (offset, length) in list {
            wire.extend(offset.to_be_bytes());
            wire.extend(length.to_be_bytes());
        }
        let extents = list.iter().map(|(offset, length)| Extent::new(*offset, *length));
        let made = extents.collect::<Result<Vec<_>, _>>().and_then(Extents::new);
        assert_eq!(made, Err(error), "{list:?}");
        assert_eq!(Extents::decode(&mut wire.into()), Err(XdrError::Extents), "{list:?}");
    }
    let many: Vec<Extent> = (0..=EXTENTS_MAX as u64).map(|at| extent(at * 2, 1)).collect();
    assert_eq!(Extents::new(many.clone()), Err(ExtentsError::Many(EXTENTS_MAX + 1)));
    let too_long = XdrError::TooLong { length: EXTENTS_MAX + 1, limit: EXTENTS_MAX };
    let mut wire = Encoder::default();
    wire.put_length(many.len());
    many.iter().for_each(|one| one.encode(&mut wire));
    assert_eq!(Extents::decode(&mut wire.finish().to_bytes()), Err(too_long));
    assert!(Extents::new(many[1..].to_vec()).is_ok());
}

/// The last byte that can be named is one that can be covered.
#[test]
fn the_last_byte_is_covered() {
    let extents = Extents::new(vec![extent(u64::MAX - 1, 1)]).unwrap();
    assert!(extents.cover(extent(u64::MAX - 1, 1)));
    assert!(!extents.cover(extent(u64::MAX - 2, 1)));
    assert_eq!(to_segments(&extents).len(), 4 + 16);
}
