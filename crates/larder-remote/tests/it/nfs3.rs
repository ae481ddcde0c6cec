//! NFSv3 against nfs-ganesha.

use bytes::Bytes;
use larder_remote::nfs3::{MountError, MountOptions, Nfs3};
use larder_rpc::{Recovery, Transport};
use larder_testkit::{Ganesha, Options, Squash};
use larder_vfs::conformance::{Ability, Traits, Verdict, cases};
use larder_vfs::{
    Access, Cookie, Cred, Device, Error, Handle, Kind, New, Remote, Removal, SetAttr, SetTime,
    Stability, Time,
};
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A server, what it exports, and a client that has mounted it.
struct Setup {
    nfs: Nfs3,
    root: Handle,
    cred: Cred,
    server: Ganesha,
    dir: TempDir,
}

fn serve(options: &Options) -> (Ganesha, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let server = Ganesha::start(dir.path(), options).unwrap_or_else(|error| panic!("{error}"));
    (server, dir)
}

/// Over UDP, with the timeouts of TCP: a server may wait for its disk longer than the default.
fn over_udp(options: &mut MountOptions) {
    options.transport = Transport::Udp;
    options.retransmissions = Some(40);
}

fn options(server: &Ganesha) -> MountOptions {
    let host = server.host().to_string();
    MountOptions::new(&host, server.export().to_str().unwrap())
}

async fn setup(change: impl FnOnce(&mut MountOptions)) -> Setup {
    let (server, dir) = serve(&Options::default());
    let mut options = options(&server);
    change(&mut options);
    let nfs = Nfs3::mount(&options).await.unwrap_or_else(|error| panic!("{error}"));
    let root = nfs.root().await.unwrap().handle;
    Setup { nfs, root, cred: Cred::root(), server, dir }
}

impl Setup {
    async fn make(&self, name: &str, new: New) -> Result<Handle, Error> {
        let name = OsStr::new(name);
        let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
        let made = self.nfs.make(&self.cred, &self.root, name, new, set).await?;
        Ok(made.found.handle)
    }

    async fn find(&self, name: &str) -> Option<Handle> {
        let looked_up = self.nfs.lookup(&self.cred, &self.root, OsStr::new(name)).await.unwrap();
        looked_up.found.map(|found| found.handle)
    }

    async fn write(&self, file: &Handle, offset: u64, data: &[u8], how: Stability) {
        let data = Bytes::copy_from_slice(data);
        let written = self.nfs.write(&self.cred, file, None, offset, data, how).await.unwrap();
        assert!(written.change.after.is_some());
    }

    async fn list(&self, dir: &Handle, bytes_max: u32) -> Vec<(OsString, bool)> {
        let mut names = Vec::new();
        let mut cookie = Cookie::default();
        loop {
            let page = self.nfs.readdir(&self.cred, dir, cookie, bytes_max).await.unwrap();
            if let Some(last) = page.entries.last() {
                cookie = Cookie { position: last.position, verifier: page.verifier };
            }
            let told = |entry: &larder_vfs::Listed| entry.attr.is_some() && entry.handle.is_some();
            names.extend(page.entries.iter().map(|entry| (entry.name.clone(), told(entry))));
            if page.eof {
                names.sort();
                return names;
            }
        }
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 251) as u8).collect()
}

async fn data_survives(change: impl FnOnce(&mut MountOptions)) {
    let setup = setup(change).await;
    let file = setup.make("data", New::FileExclusive).await.unwrap();
    let data = pattern(3_000_001);
    let whole = Bytes::from(data.clone());
    let written =
        setup.nfs.write(&setup.cred, &file, None, 0, whole, Stability::Unstable).await.unwrap();
    let committed = setup.nfs.commit(&setup.cred, &file, None, 0..0).await.unwrap();
    assert_eq!(written.verifier, committed.verifier);
    assert_eq!(written.change.after.unwrap().size, 3_000_001);
    assert!(std::fs::read(setup.dir.path().join("data")).unwrap() == data);

    for (offset, len) in [(0, 3_000_001), (1, 70_000), (2_999_999, 10), (5_000_000, 1)] {
        let read = setup.nfs.read(&setup.cred, &file, None, offset, len).await.unwrap();
        let start = data.len().min(offset as usize);
        let end = data.len().min(start + len as usize);
        assert!(read.data == data[start..end], "{offset}+{len}: {} bytes", read.data.len());
        assert_eq!(read.eof, end == data.len(), "{offset}+{len}");
    }
    setup.write(&file, 10, b"middle", Stability::FileSync).await;
    let read = setup.nfs.read(&setup.cred, &file, None, 8, 10).await.unwrap();
    assert_eq!(read.data[2..8], *b"middle");
}

/// The suite of `larder-vfs`, all cases on one mount.
async fn conforms(change: impl FnOnce(&mut MountOptions)) {
    let silent = "nfs-ganesha tells nothing of a file before a WRITE";
    let traits = Traits::default()
        .without(Ability::Before, silent)
        .without(Ability::Locks, "they have a protocol of their own, which is not spoken")
        .without(Ability::Xattrs, "NFSv3 has none")
        .without(Ability::Allocate, "NFSv3 has none")
        .without(Ability::Punch, "NFSv3 has none")
        .without(Ability::Copy, "NFSv3 has none")
        .without(Ability::Holes, "NFSv3 has none")
        .without(Ability::UnwrittenHoles, "NFSv3 has none");
    let Setup { nfs, root, server, dir, .. } = setup(change).await;
    let nfs: Arc<dyn Remote> = Arc::new(nfs);
    let mut failures = Vec::new();
    for case in cases() {
        match case.check(&nfs, &root, &traits).await {
            Verdict::Passed => (),
            Verdict::Skipped(reason) => println!("{} skipped: {reason}", case.name),
            Verdict::Failed(why) => failures.push(format!("{}: {why}", case.name)),
        }
    }
    drop((server, dir));
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

#[tokio::test]
async fn the_conformance_suite_passes_over_tcp() {
    conforms(|_| ()).await;
}

#[tokio::test]
async fn the_conformance_suite_passes_over_udp() {
    conforms(over_udp).await;
}

#[tokio::test]
async fn data_survives_over_tcp() {
    data_survives(|_| ()).await;
}

#[tokio::test]
async fn data_survives_over_udp() {
    data_survives(over_udp).await;
}

#[tokio::test]
async fn data_survives_in_small_requests_over_several_connections() {
    data_survives(|options| {
        options.connections = 3;
        options.read_max = 8192;
        options.write_max = 4096;
    })
    .await;
}

#[tokio::test]
async fn every_kind_of_object_is_made_and_removed() {
    let setup = setup(|_| ()).await;
    let kinds = [
        ("file", New::File, Kind::File),
        ("exclusive", New::FileExclusive, Kind::File),
        ("directory", New::Directory, Kind::Directory),
        ("link", New::Symlink("some/where".into()), Kind::Symlink),
        ("pipe", New::Node(Kind::Fifo, Device::default()), Kind::Fifo),
        ("socket", New::Node(Kind::Socket, Device::default()), Kind::Socket),
        ("disk", New::Node(Kind::BlockDevice, Device { major: 7, minor: 9 }), Kind::BlockDevice),
        ("tty", New::Node(Kind::CharDevice, Device { major: 5, minor: 1 }), Kind::CharDevice),
    ];
    for (name, new, kind) in kinds {
        let handle = setup.make(name, new.clone()).await.unwrap_or_else(|e| panic!("{name}: {e}"));
        let attr = setup.nfs.getattr(&setup.cred, &handle).await.unwrap();
        assert_eq!((attr.kind, setup.find(name).await), (kind, Some(handle.clone())), "{name}");
        if let New::Node(_, device) = new {
            assert_eq!(attr.device, device, "{name}");
        }
        if kind == Kind::Symlink {
            let (target, _) = setup.nfs.readlink(&setup.cred, &handle).await.unwrap();
            assert_eq!(target, "some/where");
        }
        let again = setup.make(name, new.clone()).await;
        assert_eq!(again.is_ok(), new == New::File, "{name}: {again:?}");
        let (wrong, right) = match kind {
            Kind::Directory => (Removal::File, Removal::Directory),
            _ => (Removal::Directory, Removal::File),
        };
        let name = OsStr::new(name);
        let refused = setup.nfs.remove(&setup.cred, &setup.root, name, wrong).await.unwrap_err();
        assert!(matches!(refused, Error::IsDirectory | Error::NotDirectory), "{refused:?}");
        setup.nfs.remove(&setup.cred, &setup.root, name, right).await.unwrap();
        let gone = setup.nfs.remove(&setup.cred, &setup.root, name, right).await;
        assert_eq!(gone.unwrap_err(), Error::NotFound);
    }
}

#[tokio::test]
async fn names_move_and_multiply() {
    let setup = setup(|_| ()).await;
    let file = setup.make("one", New::File).await.unwrap();
    let dir = setup.make("dir", New::Directory).await.unwrap();
    let (one, two) = (OsStr::new("one"), OsStr::new("two"));
    let (attr, _) = setup.nfs.link(&setup.cred, &file, &dir, two).await.unwrap();
    assert_eq!(attr.unwrap().nlink, 2);
    let again = setup.nfs.link(&setup.cred, &file, &dir, two).await;
    assert_eq!(again.unwrap_err(), Error::Exists);

    let before = setup.nfs.getattr(&setup.cred, &setup.root).await.unwrap().validator();
    let (from, to) = ((&setup.root, one), (&dir, OsStr::new("three")));
    let (from_change, _) = setup.nfs.rename(&setup.cred, from, to).await.unwrap();
    assert!(from_change.follows(&before), "{from_change:?}");
    assert_eq!(setup.find("one").await, None);
    assert_eq!(setup.list(&dir, 4096).await.len(), 2);
    let missing = setup.nfs.rename(&setup.cred, from, to).await;
    assert_eq!(missing.unwrap_err(), Error::NotFound);
    let full = setup.nfs.remove(&setup.cred, &setup.root, OsStr::new("dir"), Removal::Directory);
    assert_eq!(full.await.unwrap_err(), Error::NotEmpty);
    let long = "x".repeat(300);
    assert_eq!(setup.make(&long, New::File).await.unwrap_err(), Error::NameTooLong);
}

#[tokio::test]
async fn directories_are_listed_whole_with_and_without_attributes() {
    for plus in [true, false] {
        let setup = setup(|options| options.readdirplus = plus).await;
        assert_eq!(setup.list(&setup.root, 4096).await, []);
        let name = |number| OsString::from(format!("a name of some length {number}"));
        let mut wanted: Vec<_> = (0..1500).map(name).collect();
        for name in &wanted {
            std::fs::write(setup.dir.path().join(name), "").unwrap();
        }
        wanted.sort();
        for bytes_max in [1, 4096, 1 << 20] {
            let listed = setup.list(&setup.root, bytes_max).await;
            assert!(listed.iter().map(|entry| &entry.0).eq(&wanted));
            assert!(listed.iter().all(|entry| entry.1 == plus));
        }
    }
}

#[tokio::test]
async fn attributes_are_set_and_guarded() {
    let setup = setup(|_| ()).await;
    let file = setup.make("file", New::File).await.unwrap();
    let to = Time { sec: 1_234_567_890, nsec: 123_456_789 };
    let set = SetAttr {
        mode: Some(0o4711),
        uid: Some(12),
        gid: Some(34),
        size: Some(5000),
        mtime: Some(SetTime::To(to)),
        atime: Some(SetTime::ServerNow),
        ..SetAttr::default()
    };
    setup.nfs.setattr(&setup.cred, &file, set, None).await.unwrap();
    let attr = setup.nfs.getattr(&setup.cred, &file).await.unwrap();
    assert_eq!((attr.uid, attr.gid, attr.size, attr.mtime), (12, 34, 5000, to));
    let metadata = std::fs::metadata(setup.dir.path().join("file")).unwrap();
    assert_eq!((metadata.mode() & 0o777, metadata.ino()), (0o711, attr.fileid));

    let set = SetAttr { size: Some(1), ..SetAttr::default() };
    let stale = Time { sec: attr.ctime.sec - 1, ..attr.ctime };
    let refused = setup.nfs.setattr(&setup.cred, &file, set, Some(stale)).await;
    assert_eq!(refused.unwrap_err(), Error::TryAgain);
    let changed = setup.nfs.setattr(&setup.cred, &file, set, Some(attr.ctime)).await.unwrap();
    assert_eq!(changed.after.unwrap().size, 1);
}

#[tokio::test]
async fn a_write_tells_whether_it_follows_what_was_known() {
    let setup = setup(|_| ()).await;
    let file = setup.make("file", New::File).await.unwrap();
    let known = setup.nfs.getattr(&setup.cred, &file).await.unwrap().validator();
    let data = Bytes::from_static(b"mine");
    let write = |data| setup.nfs.write(&setup.cred, &file, None, 0, data, Stability::FileSync);
    let first = write(data.clone()).await.unwrap();
    // Servers need not report the attributes from before; ganesha does not for WRITE. What they
    // report is right.
    if first.change.before.is_some() {
        assert!(first.change.follows(&known));
        std::fs::write(setup.dir.path().join("file"), "theirs, longer").unwrap();
        let second = write(data).await.unwrap();
        assert!(!second.change.follows(&first.change.after.unwrap().validator()));
    }
}

#[tokio::test]
async fn the_server_judges_the_callers_own_rights() {
    let mut setup = setup(|_| ()).await;
    let secret = setup.make("secret", New::File).await.unwrap();
    let set = SetAttr { mode: Some(0o640), gid: Some(77), ..SetAttr::default() };
    setup.nfs.setattr(&setup.cred, &secret, set, None).await.unwrap();

    setup.cred = Cred::new(1000, 1000, &[]);
    let read = |cred: Cred| {
        let (nfs, secret) = (&setup.nfs, &secret);
        async move { nfs.read(&cred, secret, None, 0, 1).await.map(|read| read.eof) }
    };
    assert_eq!(read(setup.cred.clone()).await.unwrap_err(), Error::AccessDenied);
    let many: Vec<u32> = (60..80).collect();
    assert!(read(Cred::new(1000, 1000, &many[10..])).await.unwrap(), "in the group");
    assert_eq!(
        read(Cred::new(1000, 1000, &many)).await.unwrap_err(),
        Error::AccessDenied,
        "the protocol carries sixteen groups"
    );
    let rights = setup.nfs.access(&setup.cred, &secret, Access::ALL).await.unwrap().granted;
    assert_eq!(rights, Access::NONE);
    let rights = setup.nfs.access(&Cred::root(), &secret, Access::READ | Access::MODIFY).await;
    assert_eq!(rights.unwrap().granted, Access::READ | Access::MODIFY);

    let own = setup.make("own", New::FileExclusive).await.unwrap();
    let attr = setup.nfs.getattr(&setup.cred, &own).await.unwrap();
    assert_eq!((attr.uid, attr.gid, attr.mode), (1000, 1000, 0o644));
    let age = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    assert!(attr.mtime.sec.abs_diff(age.as_secs() as i64) < 60, "the verifier is in the times");
}

#[tokio::test]
async fn limits_and_space_are_told() {
    let setup = setup(|_| ()).await;
    let limits = setup.nfs.limits();
    assert_eq!((limits.read_max, limits.write_max), (1 << 20, 1 << 20));
    assert!(limits.links && limits.symlinks && limits.name_max >= 255, "{limits:?}");
    let space = setup.nfs.statfs(&setup.cred, &setup.root).await.unwrap();
    assert!(space.bytes > space.bytes_free && space.bytes_available > 0, "{space:?}");
}

#[tokio::test]
async fn every_call_is_accounted_for() {
    let setup = setup(|_| ()).await;
    let file = setup.make("file", New::File).await.unwrap();
    setup.write(&file, 0, &pattern(100_000), Stability::FileSync).await;
    setup.nfs.read(&setup.cred, &file, None, 0, 100_000).await.unwrap();
    let stats = setup.nfs.rpc().stats();
    let of = |name: &str| *stats.procedures.iter().find(|one| one.name == name).unwrap();
    assert_eq!((of("WRITE").calls, of("READ").calls, of("FSINFO").calls), (1, 1, 1));
    assert!((100_000..101_000).contains(&of("WRITE").bytes_sent));
    assert!((100_000..101_000).contains(&of("READ").bytes_received));
    assert!(of("READ").latency.max_us > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hard_mount_outlives_a_reboot_of_the_server_which_its_verifier_shows() {
    let mut setup = setup(|options| options.recovery = Recovery::Hard).await;
    let file = setup.make("file", New::File).await.unwrap();
    let (nfs, cred) = (&setup.nfs, &setup.cred);
    let write =
        || nfs.write(cred, &file, None, 0, Bytes::from_static(b"data"), Stability::Unstable);
    let before = write().await.unwrap();
    setup.server.kill().unwrap();
    let reboot = async { tokio::task::block_in_place(|| setup.server.boot().unwrap()) };
    let (after, ()) = tokio::join!(write(), reboot);
    assert_ne!(before.verifier, after.unwrap().verifier);
    assert!(nfs.reachable());
    assert!(nfs.rpc().stats().connections[0].reconnects >= 1);
}

#[tokio::test]
async fn a_soft_mount_fails_in_time_when_the_server_freezes_and_goes_on_when_it_thaws() {
    // Not shorter: the server has to answer within that time throughout the test.
    let mut setup = setup(|options| {
        options.timeout = Some(Duration::from_secs(2));
        options.retransmissions = Some(2);
    })
    .await;
    let limit = setup.nfs.rpc().config().limit();
    setup.server.freeze().unwrap();
    let started = Instant::now();
    let call = setup.nfs.getattr(&setup.cred, &setup.root);
    let answer = tokio::time::timeout(2 * limit, call).await.expect("it ends in time");
    assert_eq!(answer.unwrap_err(), Error::TimedOut);
    assert!(started.elapsed() >= limit, "{:?}", started.elapsed());
    assert!(!setup.nfs.reachable());
    setup.server.thaw().unwrap();
    let mut state = setup.nfs.rpc().state();
    let back = state.wait_for(|state| *state == larder_rpc::ServerState::Reachable);
    tokio::time::timeout(Duration::from_secs(60), back).await.expect("the probe").unwrap();
    setup.nfs.getattr(&setup.cred, &setup.root).await.unwrap();
}

#[tokio::test]
async fn shutdown_ends_waiting_calls() {
    let mut setup = setup(|options| options.recovery = Recovery::Hard).await;
    setup.server.freeze().unwrap();
    let call = setup.nfs.getattr(&setup.cred, &setup.root);
    let (answer, ()) = tokio::join!(call, async { setup.nfs.shutdown() });
    assert_eq!(answer.unwrap_err(), Error::Shutdown);
}

#[tokio::test]
async fn a_mount_that_fails_says_why_and_what_to_do() {
    let (server, _dir) = serve(&Options { squash: Squash::Root, ..Options::default() });
    let good = options(&server);
    let check = async |options: MountOptions, why: &str| -> MountError {
        let error = Nfs3::mount(&options).await.expect_err(why);
        assert!(error.to_string().contains(why), "{error}");
        assert!(!error.to_string().contains('\n'), "{error}");
        error
    };
    Nfs3::mount(&good).await.unwrap().unmount().await;

    let elsewhere = MountOptions { host: "no-such-host.invalid".into(), ..good.clone() };
    check(elsewhere, "cannot resolve no-such-host.invalid").await;
    let nothing = MountOptions { host: "127.0.0.1".into(), port: Some(9), ..good.clone() };
    check(nothing, "cannot connect to 127.0.0.1:9").await;
    let path = MountOptions { path: "/not/exported".into(), ..good.clone() };
    check(path, "no export /not/exported; it has: /").await;
    let port = MountOptions { port: Some(2049), ..good.clone() };
    check(port, "does not serve the program").await;
    let ports = MountOptions { port: Some(2049), mount_port: Some(20048), ..good.clone() };
    Nfs3::mount(&ports).await.unwrap();
}

#[tokio::test]
async fn a_host_without_a_port_mapper_is_told_apart() {
    let (mut server, _dir) = serve(&Options::default());
    server.stop_port_mapper().unwrap();
    let error = Nfs3::mount(&options(&server)).await.unwrap_err().to_string();
    assert!(error.contains("no port mapper answers"), "{error}");
    assert!(error.contains("port=2049"), "{error}");
}
