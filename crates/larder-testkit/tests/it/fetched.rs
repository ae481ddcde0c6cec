//! What one disk is to have of another, it fetches itself: what it lacks of its set, what leaves
//! with a disk, what leaves memory. None of these bytes passes the metadata server, whatever dies
//! in the middle.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_io::{Clock, Image, RealClock};
use larder_meta::volume;
use larder_remote::native::{MountOptions, Native};
use larder_testkit::Volume;
use larder_vfs::{Cred, Handle, Medium, New, Remote, SetAttr, Stability, Volatile};
use larder_wire::capability::DiskId;
use larder_wire::disk::words::{FetchHead, Head};
use larder_wire::seal::Setup;
use tokio::runtime::{Builder, Runtime};

const FILES: usize = 6;
const FILE_BYTES: usize = 3 << 20;
/// Orders, refreshes and their answers take far less than one part in a hundred of the data.
const CONTROL_BYTES_MAX: u64 = (FILES * FILE_BYTES) as u64 / 100;
/// A second and a half for all of it, so that much may happen in the middle.
const RATE: u64 = (FILES * FILE_BYTES) as u64 * 2 / 3;
/// How often something is looked at.
const PAUSE: Duration = Duration::from_millis(5);
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Why bytes move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The second disk was away when they were written.
    Resilvered,
    /// The first disk leaves.
    Leaving,
    /// They were in memory, the second disk, until they were due.
    Destaged,
}

/// What happens in the middle.
#[derive(Clone, Copy, Debug)]
enum Blow {
    Source,
    Target,
    Meta,
    /// Keys are rotated until what was begun is refused.
    Keys,
}

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap());

fn content(file: usize) -> Vec<u8> {
    (0..FILE_BYTES).map(|at| (at * 31 + at / 251 + file * 7) as u8).collect()
}

async fn mount(volume: &Volume) -> Native {
    let (host, port) = (volume.address().ip().to_string(), volume.address().port());
    Native::mount(&MountOptions { port, ..MountOptions::new(&host) }).await.unwrap()
}

async fn write(native: &Native, file: usize, in_memory: Option<Volatile>) {
    let (root, dir) = (Cred::root(), native.root().await.unwrap().handle);
    let set = SetAttr { mode: Some(0o644), in_memory, ..SetAttr::default() };
    let name = format!("f{file}");
    let made = native.make(&root, &dir, name.as_ref(), New::File, set).await.unwrap();
    let (handle, token) = (made.found.handle, made.token.unwrap());
    let stability = in_memory.map_or(Stability::FileSync, Stability::Shared);
    let data = Bytes::from(content(file));
    native.write(&root, &handle, Some(&token), 0, data, stability).await.unwrap();
    native.close(&root, token).await.unwrap();
}

async fn found(native: &Native, file: usize) -> Handle {
    let (root, dir) = (Cred::root(), native.root().await.unwrap().handle);
    let name = format!("f{file}");
    native.lookup(&root, &dir, name.as_ref()).await.unwrap().found.unwrap().handle
}

/// How many of the files are as they were written, and on disks. The others cannot be read.
async fn right(native: &Native) -> usize {
    let (root, mut right) = (Cred::root(), 0);
    for file in 0..FILES {
        let handle = found(native, file).await;
        if let Ok(read) = native.read(&root, &handle, None, 0, FILE_BYTES as u32).await {
            assert!(read.data == content(file), "file {file} has other bytes");
            let stored = native.stored(&root, &handle).await.unwrap();
            right += usize::from(stored.iter().all(|part| part.medium == Medium::Disk));
        }
    }
    right
}

impl Way {
    /// The disk that the bytes come from, and the one that they go to.
    fn ends(self) -> (usize, usize) {
        match self {
            Way::Resilvered | Way::Leaving => (0, 1),
            Way::Destaged => (1, 0),
        }
    }

    /// A volume whose files are about to move.
    fn begin(self, setup: Setup) -> Volume {
        let mut volume = match self {
            Way::Resilvered => Volume::with_copies(setup, 2),
            Way::Leaving => Volume::with_sets(setup, (1, 2), 256 << 20),
            Way::Destaged => Volume::new(setup),
        };
        if self == Way::Destaged {
            volume.add_memory(1);
        }
        volume.kill_meta(Image::Written);
        volume.count_bytes_of_disks(RATE);
        if self == Way::Resilvered {
            volume.start();
            volume.kill_disk(1, Image::Written);
        }
        if self != Way::Resilvered {
            volume.start();
        }
        let due = Some(Duration::from_secs(2));
        let volatile = (self == Way::Destaged).then_some(Volatile { copies: 1, due });
        RUNTIME.block_on(async {
            let native = mount(&volume).await;
            for file in 0..FILES {
                write(&native, file, volatile).await;
            }
        });
        match self {
            Way::Resilvered => volume.start(),
            Way::Leaving => volume.remove_disk(0),
            Way::Destaged => {}
        }
        volume
    }

    /// Whether everything has moved.
    fn has_ended(self, volume: &Volume) -> bool {
        let ask = |ask: fn(&dyn larder_meta::engine::Engine) -> bool| volume.ask(ask) == Some(true);
        match self {
            Way::Resilvered => ask(|engine| {
                volume::copies(engine).unwrap().disks.values().all(|disk| disk.stale_bytes == 0)
            }),
            Way::Leaving => ask(|engine| {
                volume::disks(engine).unwrap().iter().all(|(disk, _)| *disk != DiskId(1))
            }),
            Way::Destaged => volume.activity().destaging.files == 0,
        }
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + WAIT_MAX;
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        let clock: &dyn Clock = &RealClock;
        RUNTIME.block_on(async { clock.sleep(PAUSE).await });
    }
}

/// Bytes move, and something happens in the middle. Then all of them are where they belong, without
/// the disk that they came from.
fn check(way: Way, setup: Setup, blow: Option<Blow>) {
    let what = format!("{way:?} {setup:?} {blow:?}");
    let mut volume = way.begin(setup);
    let (source, target) = way.ends();
    if let Some(blow) = blow {
        until(&what, || volume.fetches(target) >= 2);
        match blow {
            Blow::Source => volume.kill_disk(source, Image::Written),
            Blow::Target => volume.kill_disk(target, Image::Written),
            Blow::Meta => volume.kill_meta(Image::Written),
            Blow::Keys => (0..3).for_each(|_| assert!(volume.rotate_keys(), "{what}")),
        }
        volume.start();
    }
    let is_lost = way == Way::Destaged && matches!(blow, Some(Blow::Source));
    until(&what, || is_lost || way.has_ended(&volume));
    let passed = volume.bytes_of_disks();
    assert!((1..CONTROL_BYTES_MAX).contains(&passed), "{what}: {passed} bytes");
    assert!(is_lost || volume.fetches(target) > 0, "{what}");
    // Memory that died has nothing any more.
    if !is_lost {
        volume.kill_disk(source, Image::Written);
    }
    let right = RUNTIME.block_on(async { right(&mount(&volume).await).await });
    assert!(right == FILES || is_lost, "{what}: {right}");
    volume.kill();
    assert_eq!(volume.check(), Vec::<String>::new(), "{what}");
}

#[test]
fn what_is_resilvered_does_not_pass_the_metadata_server() {
    for setup in [Setup::Off, Setup::Secure, Setup::Private] {
        check(Way::Resilvered, setup, None);
    }
}

#[test]
fn what_leaves_with_a_disk_does_not_pass_the_metadata_server() {
    for setup in [Setup::Off, Setup::Secure, Setup::Private] {
        check(Way::Leaving, setup, None);
    }
}

#[test]
fn what_leaves_memory_does_not_pass_the_metadata_server() {
    for setup in [Setup::Off, Setup::Secure, Setup::Private] {
        check(Way::Destaged, setup, None);
    }
}

#[test]
fn whatever_dies_while_disks_fetch_the_copies_are_equal_in_the_end() {
    for way in [Way::Resilvered, Way::Leaving, Way::Destaged] {
        for blow in [Blow::Source, Blow::Target, Blow::Meta, Blow::Keys] {
            check(way, Setup::Secure, Some(blow));
        }
    }
}

/// A disk that cannot fetch is served, and lacks what it lacks: one line says why. What it lacks it
/// gets as soon as it can.
#[test]
fn a_disk_that_cannot_fetch_says_why_and_goes_on_when_it_can() {
    let mut volume = Way::Resilvered.begin(Setup::Secure);
    for (is_earlier, what) in [
        (true, "it cannot copy from disk 1: its larder is of a version before disks did that"),
        (false, "it cannot copy from disk 1: cannot connect to 127.0.0.1:9: Connection refused"),
    ] {
        volume.kill_meta(Image::Written);
        volume.kill_disk(1, Image::Written);
        if is_earlier {
            volume.let_disks_be_earlier_than(FetchHead::NUMBER);
        } else {
            volume.let_disks_be_earlier_than(u32::MAX);
            // Nobody listens there.
            volume.show_disk_at("127.0.0.1:9".parse().unwrap());
        }
        volume.start();
        until(what, || volume.problems()[1].as_ref().is_some_and(|why| why.contains(what)));
        assert!(!Way::Resilvered.has_ended(&volume));
    }
    volume.kill_meta(Image::Written);
    volume.show_disk_at(volume.disk_address());
    volume.start();
    until("it ends", || Way::Resilvered.has_ended(&volume));
    assert!(volume.problems().iter().all(Option::is_none));
}
