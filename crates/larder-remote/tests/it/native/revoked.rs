//! What it costs when another client ends capabilities: the calls of their holder, and those of the
//! metadata server to the disks.
//!
//! Mostly the holder's lease is recalled before the change, and what it knew of the file goes with
//! the lease: it asks for another one with a lease, and shows no disk the one that ended. It shows
//! that one if its request was under way as the change was made, or if the server moved the bytes,
//! for which no lease ends. Then the disk refuses it.

use std::collections::BTreeMap;

use larder_vfs::{Token, Volatile};
use larder_wire::disk::words::Refusal;

use super::*;

const LENGTH: u64 = 30_000;
const CUT: u64 = 20_000;

/// What another client does to a file, whether that ends capabilities, and how long the file is
/// after it. A name that is not the last one ends none.
const CHANGES: [(Does, bool, u64); 5] = [
    (Does::Set(SetAttr { mode: Some(0o600), ..NOTHING }), true, LENGTH),
    (Does::Set(SetAttr { uid: Some(1000), ..NOTHING }), true, LENGTH),
    (Does::Set(SetAttr { gid: Some(1000), ..NOTHING }), true, LENGTH),
    (Does::Set(SetAttr { size: Some(CUT), ..NOTHING }), true, CUT),
    (Does::RemoveOther, false, LENGTH),
];

#[derive(Clone, Copy, Debug)]
enum Does {
    Set(SetAttr),
    /// Removes another name of the file.
    RemoveOther,
}

const NOTHING: SetAttr = SetAttr {
    mode: None,
    uid: None,
    gid: None,
    size: None,
    atime: None,
    mtime: None,
    in_memory: None,
    retained: false,
};

impl Does {
    async fn by(self, client: &Native, file: &Handle) {
        let root = Cred::root();
        match self {
            Does::Set(set) => drop(client.setattr(&root, file, set, None).await.unwrap()),
            Does::RemoveOther => {
                let dir = client.root().await.unwrap().handle;
                client.remove(&root, &dir, "other".as_ref(), Removal::File).await.unwrap();
            }
        }
    }
}

/// A file with two names, written by a client; in memory, if it is volatile.
async fn written(client: &Native, in_memory: Option<Volatile>) -> (Handle, Bytes) {
    let (root, data) = (Cred::root(), Bytes::from(pattern(LENGTH as usize)));
    let dir = client.root().await.unwrap().handle;
    let set = SetAttr { mode: Some(0o644), in_memory, ..NOTHING };
    let made = client.make(&root, &dir, "read".as_ref(), New::File, set).await.unwrap();
    let (file, token) = (made.found.handle, made.token.unwrap());
    let stability = in_memory.map_or(Stability::FileSync, Stability::Shared);
    client.write(&root, &file, Some(&token), 0, data.clone(), stability).await.unwrap();
    client.close(&root, token).await.unwrap();
    client.link(&root, &file, &dir, "other".as_ref()).await.unwrap();
    (file, data)
}

/// How often a client has called each procedure of servers and disks.
fn all_calls(client: &Native) -> BTreeMap<&'static str, u64> {
    let called = client.stats().procedures.into_iter().map(|one| (one.name, one.calls));
    called.filter(|(_, calls)| *calls > 0).collect()
}

/// The calls for which a read waits. Beside it a lease is returned, the server told of the open
/// before that, and a session renewed.
async fn calls_to_read(
    client: &Native,
    of: (&Handle, Option<&Token>),
    expected: &[u8],
) -> Vec<(&'static str, u64)> {
    calls_to_read_by(&Cred::root(), client, of, expected).await
}

/// The same of a user.
async fn calls_to_read_by(
    cred: &Cred,
    client: &Native,
    (file, token): (&Handle, Option<&Token>),
    expected: &[u8],
) -> Vec<(&'static str, u64)> {
    let before = all_calls(client);
    let read = client.read(cred, file, token, 0, LENGTH as u32).await.unwrap();
    assert!(read.data == expected);
    let more = all_calls(client)
        .into_iter()
        .map(|(name, calls)| (name, calls - before.get(name).copied().unwrap_or_default()));
    // A CLOSE is of an open of before, which no caller waits for.
    let is_beside = |name| ["OPEN", "CLOSE", "RENEW", "RETURN_LEASE"].contains(&name);
    more.filter(|(name, calls)| *calls > 0 && !is_beside(*name)).collect()
}

/// How often each disk was told to revoke, and has refused what was revoked.
fn told(volume: &Volume) -> Vec<(u64, u64)> {
    let disks = 0..volume.disks() + volume.memory_disks();
    disks.map(|at| (volume.revocations(at), volume.refusals(at, Refusal::Revoked))).collect()
}

/// A change is told to each disk once, with all capabilities of all clients there. A holder's lease
/// is recalled for it, so that the holder shows no disk what has ended: it asks for another
/// capability, which is one call more, and brings another lease: the next read costs none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revocation_is_one_call_to_each_disk_and_costs_its_holder_one() {
    for copies in [1, 2] {
        let volume = Volume::with_copies(Setup::Secure, copies);
        let (one, two, root) = (mount(&volume).await, mount(&volume).await, Cred::root());
        let others = [mount(&volume).await, mount(&volume).await];
        let (file, data) = written(&one, None).await;
        for (does, is_revoked, length) in CHANGES {
            let about = format!("{does:?}, {copies} copies");
            let size = one.getattr(&root, &file).await.unwrap().size;
            let (whole, rest) = (&data[..size as usize], &data[..size.min(length) as usize]);
            for other in &others {
                calls_to_read(other, (&file, None), whole).await;
            }
            let opened = two.open(&root, &file, Intent::READ).await.unwrap();
            let of = (&file, opened.token.as_ref());
            calls_to_read(&two, of, whole).await;
            let known = calls_to_read(&two, of, whole).await;
            assert_eq!(known, [("READ", 1)], "{about}: under a lease");
            let before = told(&volume);
            does.by(&one, &file).await;
            let after = calls_to_read(&two, of, rest).await;
            assert_eq!(after, [("LOOK", 1), ("READ", 1)], "{about}");
            let again = calls_to_read(&two, of, rest).await;
            assert_eq!(again, [("READ", 1)], "{about}: under a lease again");
            let more =
                before.iter().map(|(told, refused)| (told + u64::from(is_revoked), *refused));
            assert_eq!(told(&volume), more.collect::<Vec<_>>(), "{about}");
            two.close(&root, opened.token.unwrap()).await.unwrap();
        }
    }
}

/// The owner of a file takes the right to read it from a user who has it open: that user goes on by
/// the open, whose capability costs a call once, since the lease comes without one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_read_any_more_goes_on_by_the_open_under_a_lease() {
    let volume = Volume::new(Setup::Secure);
    let (one, two) = (mount(&volume).await, mount(&volume).await);
    let user = Cred { uid: 1000, gid: 1000, ..Cred::root() };
    let (file, data) = written(&one, None).await;
    let opened = two.open(&user, &file, Intent::READ).await.unwrap();
    let of = (&file, opened.token.as_ref());
    for _ in 0..2 {
        calls_to_read_by(&user, &two, of, &data).await;
    }
    for mode in [0o600, 0o400] {
        Does::Set(SetAttr { mode: Some(mode), ..NOTHING }).by(&one, &file).await;
        let after = calls_to_read_by(&user, &two, of, &data).await;
        assert_eq!(after, [("GETCAPS", 1), ("LOOK", 1), ("READ", 1)]);
        assert_eq!(calls_to_read_by(&user, &two, of, &data).await, [("READ", 1)]);
    }
    let without = two.read(&user, &file, None, 0, LENGTH as u32).await;
    assert_eq!(without.map(|read| read.data), Err(Error::AccessDenied));
}

/// A READ is under way as another client's change ends its capability: the disk refuses it, and the
/// reader goes on after two round trips more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_capability_that_was_revoked_costs_two_round_trips_more() {
    for (copies, (does, is_revoked, length)) in [1, 2]
        .into_iter()
        .flat_map(|copies| CHANGES.into_iter().map(move |change| (copies, change)))
    {
        let about = format!("{does:?}, {copies} copies");
        let mut volume = Volume::with_copies(Setup::Secure, copies);
        let mut relay = Relay::to(volume.disk_address()).await;
        volume.kill_meta(Image::Written);
        volume.show_disk_at(relay.address);
        volume.start();
        let (one, two, root) = (mount(&volume).await, mount(&volume).await, Cred::root());
        let (file, data) = written(&one, None).await;
        let opened = two.open(&root, &file, Intent::READ).await.unwrap();
        calls_to_read(&two, (&file, opened.token.as_ref()), &data).await;
        let known = calls_to_read(&two, (&file, opened.token.as_ref()), &data).await;
        assert_eq!(known, [("READ", 1)], "{about}");
        let before = told(&volume);
        relay.hold();
        let expected = &data[..if is_revoked { length } else { LENGTH } as usize];
        let reading = calls_to_read(&two, (&file, opened.token.as_ref()), expected);
        let changing = async {
            relay.catch().await;
            does.by(&one, &file).await;
            assert_eq!(told(&volume)[0].0, before[0].0 + u64::from(is_revoked), "{about}");
            relay.let_go();
        };
        let (calls, ()) = tokio::join!(reading, changing);
        let refused = told(&volume).iter().map(|disk| disk.1).sum::<u64>();
        match is_revoked {
            true => {
                assert_eq!(refused, 1, "{about}: the disk that was asked, and no other");
                assert_eq!(calls, [("LOOK", 1), ("READ", 2)], "{about}");
            }
            false => assert_eq!((refused, calls), (0, known), "{about}"),
        }
    }
}

/// The server moves the bytes of a file to another disk, which ends capabilities and no lease: the
/// reader shows the disk what has ended, and goes on after two round trips more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_were_moved_cost_their_reader_two_round_trips_more() {
    let mut volume = Volume::new(Setup::Secure);
    volume.add_memory(1);
    let (one, two, root) = (mount(&volume).await, mount(&volume).await, Cred::root());
    let volatile = Volatile { copies: 1, due: None };
    let (file, data) = written(&one, Some(volatile)).await;
    // It is connected to both disks.
    let elsewhere = make(&one, "elsewhere").await;
    let bytes = data.clone();
    one.write(&root, &elsewhere, None, 0, bytes, Stability::FileSync).await.unwrap();
    calls_to_read(&two, (&elsewhere, None), &data).await;
    let opened = two.open(&root, &file, Intent::READ).await.unwrap();
    let of = (&file, opened.token.as_ref());
    calls_to_read(&two, of, &data).await;
    assert_eq!(calls_to_read(&two, of, &data).await, [("READ", 1)]);
    let before = told(&volume);
    one.leave_memory(&root, &file, Duration::ZERO).await.unwrap();
    // The bytes have left when the call returns; the memory disk is told right after that.
    let mut moved = Vec::new();
    eventually("the memory disk refuses what has ended", async || {
        moved = calls_to_read(&two, of, &data).await;
        moved != [("READ", 1)]
    })
    .await;
    assert_eq!(moved, [("GETCAPS", 1), ("READ", 2)]);
    let (disk, memory) = (told(&volume)[0], told(&volume)[1]);
    assert_eq!((disk.1, memory.1 - before[1].1), (0, 1), "the memory disk refused it");
    assert_eq!(calls_to_read(&two, of, &data).await, [("READ", 1)], "the lease is as it was");
}

/// The keys of the disks are rotated: once costs nothing; after the second time the disks refuse
/// what a client has, and a reader goes on after two round trips more, however many copies there
/// are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_too_old_costs_its_reader_two_round_trips_more() {
    for copies in [1, 2] {
        let volume = Volume::with_copies(Setup::Secure, copies);
        let (one, two, root) = (mount(&volume).await, mount(&volume).await, Cred::root());
        let (file, data) = written(&one, None).await;
        let opened = two.open(&root, &file, Intent::READ).await.unwrap();
        let of = (&file, opened.token.as_ref());
        calls_to_read(&two, of, &data).await;
        for round in 1..=3 {
            assert_eq!(calls_to_read(&two, of, &data).await, [("READ", 1)]);
            assert!(volume.rotate_keys());
            assert_eq!(calls_to_read(&two, of, &data).await, [("READ", 1)], "{copies} copies");
            assert!(volume.rotate_keys());
            let after = calls_to_read(&two, of, &data).await;
            let asked = |name| *after == [(name, 1), ("READ", 2)];
            assert!(asked("LOOK") || asked("GETCAPS"), "{copies} copies: {after:?}");
            assert_eq!(too_old(&volume), round, "the disk that was asked, and no other");
        }
    }
}

/// How often procedures were called, by their names.
type Calls = Vec<(&'static str, u64)>;

/// The calls that a client makes meanwhile, except those that nobody waits for.
async fn calls_of(client: &Native, does: impl Future<Output = ()>) -> Calls {
    let before = all_calls(client);
    does.await;
    let more = all_calls(client)
        .into_iter()
        .map(|(name, calls)| (name, calls - before.get(name).copied().unwrap_or_default()));
    more.filter(|(name, calls)| *calls > 0 && !["RENEW", "CLOSE"].contains(name)).collect()
}

/// The same for who writes to room that it was given before, and for who has written and commits:
/// the disks refuse a request once, the client asks the server, and goes on. A small file is
/// committed by the call that was made with its first, refused WRITE.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_too_old_costs_its_writer_two_round_trips_more() {
    for copies in [1, 2] {
        let volume = Volume::with_copies(Setup::Secure, copies);
        let (one, two, root) = (mount(&volume).await, mount(&volume).await, Cred::root());
        let copies = u64::from(copies);
        // Whoever is connected to all disks.
        calls_to_write(&volume, &one, Stability::FileSync, "first", 0).await;
        for (number, stability) in [Stability::FileSync, Stability::Unstable].iter().enumerate() {
            let about = format!("{copies} copies, {stability:?}");
            let committed = vec![("COMMIT_EXTENTS", 1), ("WRITE", copies)];
            let written = vec![("WRITE", copies)];
            let flushed = vec![("COMMIT_EXTENTS", 1), ("FLUSH", copies)];
            // What a write costs, and what a commit of it.
            let (write, commit) = match stability {
                Stability::FileSync => (committed, vec![]),
                _ => (written, flushed),
            };
            for rotations in [0, 1, 2] {
                let name = format!("f{number}{rotations}");
                let (mut write, mut commit) = (write.clone(), commit.clone());
                if rotations > 1 {
                    // The disks are asked twice, and the server once.
                    let asks = if *stability == Stability::FileSync { "GETCAPS" } else { "ALLOC" };
                    write.push((asks, 1));
                    write
                        .iter_mut()
                        .filter(|(name, _)| *name == "WRITE")
                        .for_each(|one| one.1 *= 2);
                    write.sort_unstable();
                }
                if rotations > 0 && *stability != Stability::FileSync {
                    // The keys were rotated twice by now. The server's answer is for all disks.
                    commit = vec![("COMMIT_EXTENTS", 1), ("FLUSH", copies + 1), ("GETCAPS", 1)];
                }
                let done = calls_to_write(&volume, &one, *stability, &name, rotations).await;
                assert_eq!(done, (write, commit), "{about}, {rotations} rotations");
                let dir = two.root().await.unwrap().handle;
                let found = two.lookup(&root, &dir, name.as_ref()).await.unwrap().found.unwrap();
                let read = two.read(&root, &found.handle, None, 0, 20_000).await.unwrap();
                assert!(read.data == pattern(12_288), "{about}, {rotations} rotations");
            }
        }
    }
}

/// Makes a file, writes it and commits it. Before it is written, and before it is committed, the
/// keys are rotated so often. Returns the calls to write, and those to commit.
async fn calls_to_write(
    volume: &Volume,
    client: &Native,
    stability: Stability,
    name: &str,
    rotations: usize,
) -> (Calls, Calls) {
    let (root, set) = (Cred::root(), SetAttr { mode: Some(0o644), ..NOTHING });
    let dir = client.root().await.unwrap().handle;
    let made = client.make(&root, &dir, name.as_ref(), New::File, set).await.unwrap();
    let (file, token) = (made.found.handle, made.token.unwrap());
    let data = Bytes::from(pattern(12_288));
    (0..rotations).for_each(|_| assert!(volume.rotate_keys()));
    let writing = client.write(&root, &file, Some(&token), 0, data, stability);
    let written = calls_of(client, async { assert!(writing.await.is_ok()) }).await;
    // What was written last has the last key.
    (0..rotations).for_each(|_| assert!(volume.rotate_keys()));
    let committing = client.commit(&root, &file, Some(&token), 0..0);
    let committed = calls_of(client, async { assert!(committing.await.is_ok()) }).await;
    client.close(&root, token).await.unwrap();
    (written, committed)
}

/// How often disks have refused a capability whose key was too old.
fn too_old(volume: &Volume) -> u64 {
    (0..volume.disks()).map(|at| volume.refusals(at, Refusal::OldKey)).sum()
}
