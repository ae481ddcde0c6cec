//! Sessions begin, go on and end.

use std::time::Duration;

use larder_wire::meta::Status;
use larder_wire::meta::calls::{self, OpenWhat};
use larder_wire::meta::words::{FileId, Mode};

use super::rig::{LEASE, Rig, dentry, refused};
use crate::rights::Caller;

const ROOT: FileId = FileId::ROOT;

#[test]
fn a_client_that_comes_back_finds_its_session() {
    let mut rig = Rig::new(16);
    let given = rig.begin_session([1; 16], 1).unwrap();
    assert!(given.resumed && given.session == rig.session);
    assert_eq!((given.root, given.slots, given.volume.0), (ROOT, 4, [7; 16]));
    let mut rig = rig.crash();
    let again = rig.begin_session([1; 16], 1).unwrap();
    assert!(again.resumed && again.session == rig.session);
    assert!(again.server_boot > given.server_boot);
    let other = rig.begin_session([1; 16], 2).unwrap();
    assert!(!other.resumed && other.session != rig.session);
    assert_eq!(refused(rig.attributes(ROOT)), Status::BadSession);
}

#[test]
fn a_client_that_does_not_call_loses_its_session() {
    let mut rig = Rig::new(16);
    let root = Caller::root();
    let file = rig.create(&root, ROOT, "a").unwrap().file.after.file;
    rig.alloc(file, 0..4096).unwrap();
    rig.remove(ROOT, "a").unwrap();
    rig.wait(LEASE);
    assert!(rig.attributes(file).is_ok(), "it was called in time");
    rig.wait(LEASE + Duration::from_secs(1));
    assert_eq!(refused(rig.attributes(file)), Status::BadSession);
    rig.session = rig.begin_session([1; 16], 1).unwrap().session;
    assert_eq!(refused(rig.attributes(file)), Status::Stale);
    assert_eq!(rig.free_bytes(), 16 * 4096);
    rig.check();
}

/// After a restart a client can open a file without a name again; files that no client opened in
/// time are removed.
#[test]
fn files_without_names_wait_for_their_clients_after_a_restart() {
    let mut rig = Rig::new(16);
    let root = Caller::root();
    let kept = rig.create(&root, ROOT, "kept").unwrap().file.after.file;
    let lost = rig.create(&root, ROOT, "lost").unwrap().file.after.file;
    rig.write(lost, 0..4096).unwrap();
    rig.remove(ROOT, "kept").unwrap();
    rig.remove(ROOT, "lost").unwrap();
    let mut rig = rig.crash();
    rig.check();
    let opened = rig.open(&root, OpenWhat::File(kept), Mode::Read).unwrap();
    rig.wait(LEASE);
    assert!(rig.attributes(kept).is_ok());
    assert_eq!(refused(rig.attributes(lost)), Status::Stale);
    rig.close(opened.open).unwrap();
    assert_eq!(refused(rig.attributes(kept)), Status::Stale);
    assert_eq!(rig.free_bytes(), 16 * 4096);
    rig.check();
}

/// After a restart the server does not know yet what its clients have open: until they have had the
/// time to report it, no file is removed with its last name, nor with what may not be its last
/// close.
#[test]
fn what_may_be_open_since_before_a_restart_stays_until_its_clients_had_time_to_say_so() {
    let mut rig = Rig::new(16);
    let root = Caller::root();
    let files = ["removed", "replaced", "closed", "nobodys"].map(|name| {
        let file = rig.create(&root, ROOT, name).unwrap().file.after.file;
        rig.write(file, 0..4096).unwrap();
        file
    });
    rig.create(&root, ROOT, "other").unwrap();
    let mut rig = rig.crash();
    let [removed, replaced, closed, nobodys] = files;
    for name in ["removed", "closed", "nobodys"] {
        rig.remove(ROOT, name).unwrap();
    }
    let (sequence, keep) = (rig.next(), false);
    let (from, to) = (dentry(ROOT, "other"), dentry(ROOT, "replaced"));
    rig.call(&root, calls::Rename { sequence, from, to, keep }).unwrap();
    // One process has closed it, another one may have it open still.
    let opened = rig.open(&root, OpenWhat::File(closed), Mode::Read).unwrap();
    rig.close(opened.open).unwrap();
    let opened: Vec<_> = [removed, replaced, closed]
        .map(|file| rig.open(&root, OpenWhat::File(file), Mode::Read).unwrap().open)
        .into();
    rig.check();
    rig.wait(LEASE);
    for file in [removed, replaced, closed] {
        assert_eq!(rig.layout(file, Mode::Read).unwrap().layout.extents.0.len(), 1);
    }
    assert_eq!(refused(rig.attributes(nobodys)), Status::Stale);
    assert_eq!(rig.free_bytes(), 13 * 4096);
    opened.into_iter().for_each(|open| rig.close(open).unwrap());
    assert_eq!(rig.free_bytes(), 16 * 4096);
    rig.check();
}

/// A directory is never open, even right after a restart.
#[test]
fn a_directory_that_is_replaced_after_a_restart_goes_at_once() {
    let mut rig = Rig::new(16);
    let root = Caller::root();
    let [_, replaced] = ["one", "other"].map(|name| rig.mkdir(&root, ROOT, name).unwrap());
    let mut rig = rig.crash();
    let (sequence, keep) = (rig.next(), false);
    let (from, to) = (dentry(ROOT, "one"), dentry(ROOT, "other"));
    rig.call(&root, calls::Rename { sequence, from, to, keep }).unwrap();
    assert_eq!(refused(rig.attributes(replaced)), Status::Stale);
    rig.check();
}

/// Where no client was, none is waited for.
#[test]
fn without_clients_from_before_a_removed_file_goes_at_once() {
    let mut rig = Rig::new(16);
    let session = rig.session;
    rig.call(&Caller::root(), calls::EndSession { session }).unwrap();
    let mut rig = rig.crash();
    rig.session = rig.begin_session([2; 16], 1).unwrap().session;
    rig.sequence = 0;
    let opened = rig.create(&Caller::root(), ROOT, "a").unwrap();
    rig.write(opened.file.after.file, 0..4096).unwrap();
    rig.close(opened.open).unwrap();
    rig.remove(ROOT, "a").unwrap();
    assert_eq!(rig.free_bytes(), 16 * 4096);
}

#[test]
fn an_ended_session_is_over() {
    let mut rig = Rig::new(16);
    let session = rig.session;
    rig.call(&Caller::root(), calls::EndSession { session }).unwrap();
    let again = rig.call(&Caller::root(), calls::EndSession { session });
    assert_eq!(refused(again), Status::BadSession);
}
