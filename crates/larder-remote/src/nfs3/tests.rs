//! What the client does when a server answers late, short, not at all, or differently the second
//! time: a scripted server on loopback. The ordinary cases are tried on a real one (`tests/it`).

use super::*;
use larder_rpc::SourcePort;
use larder_vfs::{Device, Kind, Listed, Verifier};
use larder_wire::mount3;
use larder_wire::nfs3::*;
use larder_wire::record::{Heap, RecordAssembler};
use larder_wire::rpc::{CallHeader, Outcome, ReplyHeader, encode_reply};
use larder_wire::xdr::{Array, Encode, Encoder, Framing, List, to_segments};
use nfsproc3::{COMMIT, CREATE, FSINFO, GETATTR, LINK, LOOKUP, MKDIR, PATHCONF, READ, READDIR};
use nfsproc3::{READDIRPLUS, REMOVE, RENAME, WRITE};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// READ and WRITE of the scripted server, in bytes.
const PAYLOAD: u32 = 4096;

/// The procedure that the server expects, and its results. Without results it drops the connection,
/// as if the reply had been lost.
type Step = (nfsproc3, Option<Bytes>);
type Script = Arc<Mutex<VecDeque<Step>>>;

struct Raw(Bytes);

impl Encode for Raw {
    fn encode(&self, out: &mut Encoder) {
        out.put_fixed(&self.0);
    }
}

fn ok<T: Encode>(procedure: nfsproc3, answer: T) -> Step {
    let results: Res3<T, ()> = Ok(answer);
    (procedure, Some(to_segments(&results).to_bytes()))
}

fn fail<E: Encode>(procedure: nfsproc3, status: nfsstat3, detail: E) -> Step {
    let results: Res3<(), E> = Err(Fail { status, detail });
    (procedure, Some(to_segments(&results).to_bytes()))
}

fn lost(procedure: nfsproc3) -> Step {
    (procedure, None)
}

fn file(id: u64, r#type: ftype3, seconds: u32) -> fattr3 {
    let time = nfstime3 { seconds, nseconds: 5 };
    fattr3 {
        r#type,
        mode: 0o644,
        nlink: 1,
        uid: 0,
        gid: 0,
        size: 10,
        used: 10,
        rdev: specdata3::default(),
        fsid: 1,
        fileid: id,
        atime: time,
        mtime: time,
        ctime: time,
    }
}

fn handle(id: u8) -> nfs_fh3 {
    nfs_fh3::new(&[id; 8]).unwrap()
}

/// The calls that lead to the root, so that scripts begin after the mount.
fn mounting(header: &CallHeader) -> Option<Bytes> {
    if header.program == mount3::PROGRAM {
        let fhandle = Bytes::copy_from_slice(handle(1).as_bytes()).into();
        let answer = mount3::mountres3_ok { fhandle, auth_flavors: Array(vec![1]) };
        return Some(to_segments(&mount3::mountres3::Ok(answer)).to_bytes());
    }
    match nfsproc3::try_from(header.procedure).unwrap() {
        FSINFO => {
            let info = FSINFO3resok {
                obj_attributes: None,
                rtmax: PAYLOAD,
                rtpref: PAYLOAD,
                rtmult: 1,
                wtmax: PAYLOAD,
                wtpref: PAYLOAD,
                wtmult: 1,
                dtpref: PAYLOAD,
                maxfilesize: 1 << 40,
                time_delta: nfstime3::default(),
                properties: 0,
            };
            ok(FSINFO, info).1
        }
        PATHCONF => fail(PATHCONF, nfsstat3::NFS3ERR_NOTSUPP, None::<fattr3>).1,
        _ => None,
    }
}

async fn serve(mut stream: TcpStream, script: Script) {
    let mut records = RecordAssembler::new(Heap, 1 << 20);
    let mut bytes = vec![0; 1 << 16];
    while let Ok(length @ 1..) = stream.read(&mut bytes).await {
        let mut calls = Vec::new();
        records.push(&bytes[..length], &mut |record| calls.push(record)).unwrap();
        for mut call in calls {
            let header = CallHeader::decode(&mut call).unwrap();
            let results = mounting(&header).or_else(|| {
                let procedure = nfsproc3::try_from(header.procedure).unwrap();
                let step = script.lock().unwrap().pop_front();
                let (expected, results) = step.unwrap_or_else(|| panic!("{procedure:?}"));
                assert_eq!(procedure, expected);
                results
            });
            let Some(results) = results else { return };
            let reply = ReplyHeader { xid: header.xid, outcome: Outcome::Success };
            let reply = encode_reply(reply, &Raw(results), Framing::Record).to_bytes();
            stream.write_all(&reply).await.unwrap();
        }
    }
}

/// A mount of a server that answers according to a script. The script must be used up when this is
/// dropped.
struct Scripted {
    nfs: Nfs3,
    script: Script,
    cred: Cred,
    root: Handle,
}

impl Drop for Scripted {
    fn drop(&mut self) {
        let left = self.script.lock().unwrap().len();
        assert!(left == 0 || std::thread::panicking(), "{left} steps left");
    }
}

async fn scripted(steps: impl IntoIterator<Item = Step>) -> Scripted {
    scripted_with(steps, |_| {}).await
}

async fn scripted_with(
    steps: impl IntoIterator<Item = Step>,
    adjust: impl FnOnce(&mut MountOptions),
) -> Scripted {
    let script: Script = Arc::new(Mutex::new(steps.into_iter().collect()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut options = MountOptions::new("127.0.0.1", "/export");
    options.port = Some(listener.local_addr().unwrap().port());
    options.source_port = SourcePort::Any;
    adjust(&mut options);
    let served = script.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, served.clone()));
        }
    });
    let nfs = Nfs3::mount(&options).await.unwrap();
    Scripted { nfs, script, cred: Cred::root(), root: convert::handle(&handle(1)) }
}

const NAME: &str = "name";

impl Scripted {
    async fn remove(&self) -> Result<Change> {
        self.nfs.remove(&self.cred, &self.root, NAME.as_ref(), Removal::File).await
    }

    async fn make(&self, new: New) -> Result<Made> {
        self.nfs.make(&self.cred, &self.root, NAME.as_ref(), new, SetAttr::default()).await
    }

    async fn link(&self) -> Result<(Option<Attr>, Change)> {
        let file = convert::handle(&handle(2));
        self.nfs.link(&self.cred, &file, &self.root, NAME.as_ref()).await
    }

    async fn write(&self, length: usize, stability: Stability) -> Result<RemoteWritten> {
        let data = Bytes::from(vec![1; length]);
        self.nfs.write(&self.cred, &self.root, None, 0, data, stability).await
    }
}

fn looked_up(id: u8, attributes: fattr3, dir: Option<fattr3>) -> Step {
    let object = handle(id);
    ok(LOOKUP, LOOKUP3resok { object, obj_attributes: Some(attributes), dir_attributes: dir })
}

fn not_there(procedure: nfsproc3) -> Step {
    fail(procedure, nfsstat3::NFS3ERR_NOENT, None::<fattr3>)
}

#[tokio::test]
async fn a_busy_server_is_asked_again() {
    let busy = || fail(GETATTR, nfsstat3::NFS3ERR_JUKEBOX, ());
    let answer = GETATTR3resok { obj_attributes: file(7, ftype3::NF3REG, 1) };
    let server = scripted([busy(), busy(), ok(GETATTR, answer)]).await;
    assert_eq!(server.nfs.getattr(&server.cred, &server.root).await.unwrap().fileid, 7);
}

#[tokio::test]
async fn a_busy_server_is_asked_no_longer_than_a_call_may_take() {
    let busy = || fail(GETATTR, nfsstat3::NFS3ERR_JUKEBOX, ());
    let server = scripted_with(std::iter::repeat_with(busy).take(64), |options| {
        options.timeout = Some(Duration::from_millis(500));
        options.retransmissions = Some(1);
    });
    let server = server.await;
    let begun = tokio::time::Instant::now();
    let refused = server.nfs.getattr(&server.cred, &server.root).await;
    assert_eq!(refused.unwrap_err(), Error::TimedOut);
    let asked = 64 - server.script.lock().unwrap().drain(..).count();
    // After pauses of 100, 200 and 400 ms the next would end after the limit of 1 s.
    assert!((2..=4).contains(&asked), "{asked} in {:?}", begun.elapsed());
}

#[tokio::test]
async fn a_removal_whose_reply_was_lost_is_done() {
    let gone = || fail(REMOVE, nfsstat3::NFS3ERR_NOENT, wcc_data::default());
    let server = scripted([lost(REMOVE), gone(), gone()]).await;
    server.remove().await.unwrap();
    assert_eq!(server.remove().await.unwrap_err(), Error::NotFound, "sent once");
}

#[tokio::test]
async fn a_rename_whose_reply_was_lost_is_done_if_the_target_is_there() {
    let gone = || fail(RENAME, nfsstat3::NFS3ERR_NOENT, RENAME3wcc::default());
    let there = || looked_up(3, file(3, ftype3::NF3REG, 1), None);
    let steps = [
        [lost(RENAME), gone(), not_there(LOOKUP), there()],
        [lost(RENAME), gone(), not_there(LOOKUP), not_there(LOOKUP)],
    ];
    let server = scripted(steps.into_iter().flatten()).await;
    let (from, to) = ((&server.root, "a".as_ref()), (&server.root, "b".as_ref()));
    server.nfs.rename(&server.cred, from, to).await.unwrap();
    let missing = server.nfs.rename(&server.cred, from, to).await;
    assert_eq!(missing.unwrap_err(), Error::NotFound);
}

#[tokio::test]
async fn a_directory_whose_reply_was_lost_is_ours_only_if_just_made() {
    let exists = || fail(MKDIR, nfsstat3::NFS3ERR_EXIST, wcc_data::default());
    let dir = |seconds| Some(file(1, ftype3::NF3DIR, seconds));
    let there = |dir| looked_up(3, file(3, ftype3::NF3DIR, 100), dir);
    let steps = [
        vec![lost(MKDIR), exists(), there(dir(100))],
        vec![lost(MKDIR), exists(), there(dir(200))],
        vec![exists()],
    ];
    let server = scripted(steps.into_iter().flatten()).await;
    assert_eq!(server.make(New::Directory).await.unwrap().found.attr.fileid, 3);
    assert_eq!(server.make(New::Directory).await.unwrap_err(), Error::Exists, "an old one");
    assert_eq!(server.make(New::Directory).await.unwrap_err(), Error::Exists, "sent once");
}

/// A caller that can tell its file itself asks again if it is not known whether this is the one.
#[tokio::test]
async fn a_file_whose_reply_was_lost_may_be_ours_if_it_is_empty() {
    let exists = || fail(CREATE, nfsstat3::NFS3ERR_EXIST, wcc_data::default());
    let there = |size, seconds| {
        let attributes = fattr3 { size, ..file(3, ftype3::NF3REG, 100) };
        looked_up(3, attributes, Some(file(1, ftype3::NF3DIR, seconds)))
    };
    let steps = [
        vec![lost(CREATE), exists(), there(0, 100)],
        vec![lost(CREATE), exists(), there(0, 200)],
        vec![lost(CREATE), exists(), there(10, 200)],
        vec![exists()],
    ];
    let server = scripted(steps.into_iter().flatten()).await;
    let make = || server.make(New::Node(Kind::File, Device::default()));
    assert_eq!(make().await.unwrap().found.attr.fileid, 3);
    assert_eq!(make().await.unwrap_err(), Error::TimedOut, "ours, or an older one");
    assert_eq!(make().await.unwrap_err(), Error::Exists, "it is written");
    assert_eq!(make().await.unwrap_err(), Error::Exists, "sent once");
}

#[tokio::test]
async fn a_link_whose_reply_was_lost_is_done_if_it_leads_to_the_file() {
    let exists = || fail(LINK, nfsstat3::NFS3ERR_EXIST, LINK3wcc::default());
    let attributes =
        |id| ok(GETATTR, GETATTR3resok { obj_attributes: file(id, ftype3::NF3REG, 1) });
    let there = |id| looked_up(id, file(u64::from(id), ftype3::NF3REG, 1), None);
    let steps = [
        [lost(LINK), exists(), there(2), attributes(2)],
        [lost(LINK), exists(), there(9), attributes(2)],
    ];
    let server = scripted(steps.into_iter().flatten()).await;
    server.link().await.unwrap();
    assert_eq!(server.link().await.unwrap_err(), Error::Exists);
}

#[tokio::test]
async fn short_reads_are_continued_and_senseless_ones_end() {
    let read = |length: usize, eof| {
        let data = Bytes::from(vec![length as u8; length]);
        let count = u32::try_from(length).unwrap();
        ok(READ, READ3resok { file_attributes: None, count, eof, data: data.into() })
    };
    let server = scripted([read(10, false), read(20, false), read(3, true), read(0, false)]).await;
    let whole = server.nfs.read(&server.cred, &server.root, None, 0, 100).await.unwrap();
    assert_eq!((whole.data.len(), whole.eof, whole.data[32]), (33, true, 3));
    let stuck = server.nfs.read(&server.cred, &server.root, None, 0, 100).await;
    assert_eq!(stuck.unwrap_err(), Error::Io);
}

fn written(count: u32, committed: stable_how, boot: u8) -> Step {
    let file_wcc = wcc_data::default();
    ok(WRITE, WRITE3resok { file_wcc, count, committed, verf: [boot; 8] })
}

#[tokio::test]
async fn a_reboot_between_the_pieces_of_a_write_starts_it_again() {
    let piece = |count, boot| written(count, stable_how::UNSTABLE, boot);
    let server = scripted([piece(PAYLOAD, 1), piece(4, 2), piece(PAYLOAD, 2), piece(4, 2)]).await;
    let done = server.write(PAYLOAD as usize + 4, Stability::Unstable).await.unwrap();
    assert_eq!(done.verifier, Verifier(u64::from_be_bytes([2; 8])));
    assert_eq!(done.stability, Stability::Unstable);
}

#[tokio::test]
async fn short_writes_are_continued_and_endless_reboots_end() {
    let piece = |count, boot| written(count, stable_how::UNSTABLE, boot);
    let server = scripted([piece(1, 1), piece(9, 1)]).await;
    server.write(10, Stability::Unstable).await.unwrap();
    let server = scripted((0..8).map(|boot| piece(5, boot))).await;
    assert_eq!(server.write(10, Stability::Unstable).await.unwrap_err(), Error::Io);
}

#[tokio::test]
async fn a_server_that_promises_too_little_is_made_to_commit() {
    let commit = |boot| ok(COMMIT, COMMIT3resok { file_wcc: wcc_data::default(), verf: [boot; 8] });
    let weak = || written(10, stable_how::UNSTABLE, 1);
    let server = scripted([weak(), commit(2), weak(), commit(1)]).await;
    let done = server.write(10, Stability::FileSync).await.unwrap();
    assert_eq!(done.stability, Stability::FileSync);
}

#[tokio::test]
async fn listings_fall_back_for_good_and_go_past_dots() {
    let page = |names: &[&'static str], eof| {
        let entry = |(cookie, name): (u64, &&'static str)| entry3 {
            fileid: 5,
            name: filename3::new((*name).into()).unwrap(),
            cookie,
        };
        let entries = List((1..).zip(names).map(entry).collect());
        let reply = dirlist3 { entries, eof };
        ok(READDIR, READDIR3resok { dir_attributes: None, cookieverf: [0; 8], reply })
    };
    let none = fail(READDIRPLUS, nfsstat3::NFS3ERR_NOTSUPP, None::<fattr3>);
    let small = fail(READDIR, nfsstat3::NFS3ERR_TOOSMALL, None::<fattr3>);
    let steps = [none, page(&[".", ".."], false), page(&["a"], true), page(&[], false), small];
    let server = scripted(steps).await;
    let list = || server.nfs.readdir(&server.cred, &server.root, Cookie::default(), 4096);
    let listing = list().await.unwrap();
    let [Listed { name, attr: None, handle: None, .. }] = &listing.entries[..] else {
        panic!("{listing:?}");
    };
    assert!(name == "a" && listing.eof);
    assert_eq!(list().await.unwrap_err(), Error::Io, "a server that gets nowhere");
    assert_eq!(list().await.unwrap_err(), Error::Io, "the largest size is too small");
}

/// A reply to READDIRPLUS with these names and cookies, and not the last.
fn listed(entries: &[(&[u8], u64)]) -> Step {
    // Encoded by hand, since the codec cannot express some of these names.
    let mut out = Encoder::default();
    nfsstat3::NFS3_OK.encode(&mut out);
    None::<fattr3>.encode(&mut out);
    [0_u8; 8].encode(&mut out);
    for (name, cookie) in entries {
        true.encode(&mut out);
        5_u64.encode(&mut out);
        out.put_slice(name);
        cookie.encode(&mut out);
        None::<fattr3>.encode(&mut out);
        None::<nfs_fh3>.encode(&mut out);
    }
    false.encode(&mut out);
    false.encode(&mut out);
    (READDIRPLUS, Some(out.finish().to_bytes()))
}

#[tokio::test]
async fn listings_that_lead_nowhere_end() {
    let dots = || listed(&[(b".", 7)]);
    let steps = [
        listed(&[(b"a", 3), (b"b", 4)]),
        listed(&[(b"c", 4)]),
        listed(&[(b"c", 5), (b"d", 6), (b"e", 5)]),
    ];
    // The same two cookies for ever, with nothing to show.
    let round = [listed(&[(b".", 7)]), listed(&[(b"..", 8)]), dots()];
    let server = scripted(steps.into_iter().chain(round)).await;
    let list = |position| {
        let cookie = Cookie { position, verifier: 0 };
        server.nfs.readdir(&server.cred, &server.root, cookie, 4096)
    };
    assert_eq!(list(0).await.unwrap().entries.len(), 2);
    assert_eq!(list(4).await.unwrap_err(), Error::Io, "a cookie that does not move");
    assert_eq!(list(4).await.unwrap_err(), Error::Io, "a cookie twice");
    assert_eq!(list(0).await.unwrap_err(), Error::Io, "dots for ever");
}

#[tokio::test]
async fn names_that_name_no_entry_of_a_directory_are_not_taken() {
    let bad: [&[u8]; 4] = [b"", b"a/b", b"/", b"a\0"];
    let server = scripted(bad.map(|name| listed(&[(b"good", 1), (name, 2)]))).await;
    for name in bad {
        let listing = server.nfs.readdir(&server.cred, &server.root, Cookie::default(), 4096);
        assert_eq!(listing.await.unwrap_err(), Error::Io, "told: {name:?}");
        let name = <OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(name);
        let found = server.nfs.lookup(&server.cred, &server.root, name).await;
        assert_eq!(found.unwrap_err(), Error::InvalidArgument, "asked: {name:?}");
    }
}

#[tokio::test]
async fn what_cannot_be_said_is_not_sent() {
    let server = scripted([]).await;
    let set = SetAttr {
        mtime: Some(larder_vfs::SetTime::To(Time { sec: -1, nsec: 0 })),
        ..SetAttr::default()
    };
    let changed = server.nfs.setattr(&server.cred, &server.root, set, None).await;
    assert_eq!(changed.unwrap_err(), Error::InvalidArgument);
    let node = server.make(New::Node(Kind::Symlink, Device::default())).await;
    assert_eq!(node.unwrap_err(), Error::InvalidArgument);
    let long = "x".repeat(NAME_BYTES_MAX + 1);
    let found = server.nfs.lookup(&server.cred, &server.root, long.as_ref()).await;
    assert_eq!(found.unwrap_err(), Error::NameTooLong);
    let foreign = Handle::new(&[0; FHSIZE + 1]);
    assert_eq!(server.nfs.getattr(&server.cred, &foreign).await.unwrap_err(), Error::Stale);
}
