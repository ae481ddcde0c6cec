//! Leases and what is known under them, without a server.

use super::*;

use larder_io::{RealClock, SimClock};

fn file(number: u8) -> Handle {
    Handle::new(&[number])
}

fn info(size: u64) -> Info {
    Info {
        created: 1,
        accessed: 1,
        written: 1,
        changed: 1,
        attributes: 0,
        allocation: 0,
        size,
        links: 1,
        file_id: 9,
    }
}

fn known(size: u64) -> Known {
    Known { info: info(size), maximal: 7 }
}

fn size(file: &File) -> Option<u64> {
    file.known().map(|(_, known)| known.info.size)
}

#[test]
fn what_is_granted_is_known_until_it_ends() {
    let files = Files::new(Arc::new(RealClock));
    let one = files.enter(&file(1));
    assert!(one.known().is_none());
    let lease = one.granted(one.moment(), known(5), Granted::Whole).unwrap();
    assert_eq!(size(&one), Some(5));
    assert!(files.by_key(&one.key).is_some());
    assert!(one.end().is_some() && !lease.holds());
    assert_eq!(size(&one), None);
    assert!(one.end().is_none(), "only once");
}

#[test]
fn a_break_that_overtakes_the_grant_wins() {
    let files = Files::new(Arc::new(RealClock));
    let one = files.enter(&file(1));
    let asked = one.moment();
    assert!(files.by_key(&one.key).unwrap().end().is_none());
    assert!(one.granted(asked, known(5), Granted::Whole).is_none());
}

/// Another file may have the name; our own changes are still proven by it.
#[test]
fn a_lease_for_bytes_alone_lets_no_lookup_pass_unasked() {
    let files = Files::new(Arc::new(RealClock));
    let one = files.enter(&file(1));
    let whole = one.granted(one.moment(), known(5), Granted::Whole).unwrap();
    assert!(one.known().is_some() && one.whole_lease().is_some());
    let bytes = one.granted(one.moment(), known(5), Granted::Bytes).unwrap();
    assert!(!whole.holds() && bytes.holds());
    assert!(one.known().is_none() && one.whole_lease().is_none() && one.lease().is_some());
    one.found_alone(one.moment(), &info(5));
    assert!(files.changing(&file(1)).done(Some(known(6).info)).is_some());
    let again = one.granted(one.moment(), known(6), Granted::Whole).unwrap();
    assert!(again.holds() && one.known().is_some());
}

#[test]
fn a_file_that_left_has_no_lease() {
    let files = Files::new(Arc::new(RealClock));
    let one = files.enter(&file(1));
    let asked = one.moment();
    assert!(files.leave(&file(1)).is_some() && files.by_key(&one.key).is_none());
    assert!(one.granted(asked, known(5), Granted::Whole).is_none());
    assert!(files.get(&file(1)).is_none());
}

#[test]
fn own_changes_tell_what_was_before() {
    let files = Files::new(Arc::new(RealClock));
    let one = files.enter(&file(1));
    let lease = one.granted(one.moment(), known(5), Granted::Alone).unwrap();
    let change = files.changing(&file(1));
    assert_eq!(size(&one), None, "not while it changes");
    assert_eq!(change.done(Some(info(6))), Some(info(5)));
    assert_eq!(size(&one), Some(6));
    // The outcome of a change that was given up, or whose reply described nothing, is unknown.
    drop(files.changing(&file(1)));
    assert_eq!(size(&one), None);
    one.saw(one.moment(), info(7));
    assert_eq!(size(&one), Some(7));
    assert_eq!(files.changing(&file(1)).done(None), Some(info(7)));
    assert_eq!(size(&one), None);
    assert!(lease.holds());
}

#[test]
fn changes_that_overlap_tell_nothing() {
    let files = Files::new(Arc::new(RealClock));
    let one = files.enter(&file(1));
    one.granted(one.moment(), known(5), Granted::Alone).unwrap();
    let (first, second) = (files.changing(&file(1)), files.changing(&file(1)));
    assert_eq!(first.done(Some(info(6))), None);
    assert_eq!(second.done(Some(info(7))), None);
    assert_eq!(size(&one), None);
    let seen = one.moment();
    let change = files.changing(&file(1));
    one.saw(seen, info(8));
    assert_eq!(change.done(Some(info(9))), None);
    one.saw(seen, info(8));
    assert_eq!(size(&one), Some(9));
}

#[test]
fn a_change_across_a_break_does_not_follow() {
    let files = Files::new(Arc::new(RealClock));
    let one = files.enter(&file(1));
    one.granted(one.moment(), known(5), Granted::Alone).unwrap();
    let change = files.changing(&file(1));
    one.end();
    one.granted(one.moment(), known(5), Granted::Alone).unwrap();
    assert_eq!(change.done(Some(info(6))), None);
}

/// A client that is alone with a file: the state in which it was found, when, and whether that
/// proves changes.
#[test]
fn a_client_alone_with_a_file_changes_it_alone_if_no_other_did_before() {
    let later = Info { written: 2, ..info(5) };
    for (seen, happens, is_proven) in [
        (info(5), None, true),
        (Info { accessed: 2, ..info(5) }, None, true),
        (later, None, false),
        (info(6), None, false),
        (info(5), Some(File::share as fn(&File)), false),
        (info(5), Some(|file: &File| drop(file.end())), false),
    ] {
        let files = Files::new(Arc::new(RealClock));
        let one = files.enter(&file(1));
        let lease = one.granted(one.moment(), known(5), Granted::Whole).unwrap();
        assert!(lease.ends_late() && files.changing(&file(1)).done(None).is_none());
        one.saw(one.moment(), info(5));
        let asked = one.moment();
        if let Some(happens) = happens {
            happens(&one);
        }
        one.found_alone(asked, &seen);
        assert_eq!(lease.holds() && !lease.ends_late(), is_proven, "{seen:?}");
        let before = files.changing(&file(1)).done(Some(info(6)));
        assert_eq!(before.is_some(), is_proven, "{seen:?}");
        // Another client opens the file: the lease continues, and proves no more changes.
        let holds = lease.holds();
        one.share();
        assert!(lease.holds() == holds && lease.ends_late());
        assert_eq!(files.changing(&file(1)).done(Some(info(7))), None);
    }
}

#[test]
fn with_an_open_under_its_key_a_lease_ends_unless_we_are_alone() {
    for (granted, goes_on) in [(Granted::Alone, true), (Granted::Whole, false)] {
        let files = Files::new(Arc::new(RealClock));
        let one = files.enter(&file(1));
        let lease = one.granted(one.moment(), known(5), granted).unwrap();
        let asked = one.moment();
        one.closes_keyed();
        assert_eq!((lease.holds(), one.is_disturbed()), (goes_on, !goes_on));
        // Nor is one believed that is just being granted.
        assert_eq!(one.granted(asked, known(5), granted).is_some(), goes_on);
    }
}

#[test]
fn a_file_is_disturbed_for_a_while_after_a_lease_was_taken_back() {
    let clock = Arc::new(SimClock::new());
    let files = Files::new(clock.clone());
    let one = files.enter(&file(1));
    one.granted(one.moment(), known(5), Granted::Whole).unwrap();
    one.end();
    assert!(!one.is_disturbed(), "we gave it back");
    one.end_disturbed();
    clock.advance(DISTURBED_FOR / 2);
    assert!(one.is_disturbed());
    clock.advance(DISTURBED_FOR / 2);
    assert!(!one.is_disturbed());
}

#[test]
fn names_in_a_directory_need_no_word_in_time() {
    let files = Files::new(Arc::new(RealClock));
    let dir = files.enter(&file(1));
    let attributes = smb2::types::flags::FileAttributes::DIRECTORY;
    let known = Known { info: Info { attributes, ..info(0) }, maximal: 7 };
    assert!(!dir.granted(dir.moment(), known, Granted::Whole).unwrap().ends_late());
}

#[test]
fn the_table_is_bounded_and_the_oldest_leave() {
    let files = Files::new(Arc::new(RealClock));
    let handle = |number: usize| Handle::new(&number.to_le_bytes());
    let first = files.enter(&handle(0));
    let lease = first.granted(first.moment(), known(1), Granted::Whole).unwrap();
    for number in 1..3 * FILES_MAX {
        files.enter(&handle(number));
        let table = files.table();
        assert!(table.files.len() <= FILES_MAX && table.files.len() == table.keys.len());
    }
    assert!(!lease.holds() && files.get(&handle(0)).is_none());
    assert!(files.get(&handle(3 * FILES_MAX - 1)).is_some());
    assert_eq!(files.end_all(|_| true), [], "none of them had a lease");
    assert!(files.table().keys.is_empty());
}

#[test]
fn a_lost_connection_ends_the_leases_of_its_files_only() {
    let files = Files::new(Arc::new(RealClock));
    let entries: Vec<_> = (0..4).map(|number| files.enter(&file(number))).collect();
    let leased =
        |number: usize| entries[number].granted(entries[number].moment(), known(5), Granted::Whole);
    let (one, two) = (leased(1).unwrap(), leased(2).unwrap());
    let asked = entries[3].moment();
    let odd = |handle: &Handle| handle.as_bytes()[0] % 2 == 1;
    assert_eq!(files.end_all(odd), [file(1)]);
    assert!(!one.holds() && two.holds());
    assert!(
        entries[3].granted(asked, known(5), Granted::Whole).is_none(),
        "its answer was on its way"
    );
    assert!(files.by_key(&entries[1].key).is_none() && files.by_key(&entries[2].key).is_some());
    assert_eq!(files.table().keys.len(), 2);
}
