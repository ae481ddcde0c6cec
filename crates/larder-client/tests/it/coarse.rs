//! Servers whose clock is coarse: a file that is changed twice within a granule has the same
//! validator after each change.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::time::Duration;

use larder_client::Options;
use larder_vfs::{FileSystem, Ino, New, SetAttr, Time};

use crate::rig::{Random, Rig, WRITE, root};

const SECOND_MS: u64 = 1000;

/// A rig and another machine, and the time at their server, in milliseconds.
struct Coarse {
    rig: Rig,
    other: Rig,
    granule_ms: u64,
    now_ms: u64,
}

impl Coarse {
    /// Some day.
    const NOON_MS: u64 = 400_000 * SECOND_MS;

    async fn new(granule_ms: u64, options: Options) -> Coarse {
        let rig = Rig::new(Options { fill_after: None, ..options }).await;
        let other = rig.foreigner().await;
        // The other machine's clock is far behind.
        rig.clock.advance(Duration::from_millis(Coarse::NOON_MS - 1_000_000));
        let mut coarse = Coarse { rig, other, granule_ms, now_ms: Coarse::NOON_MS };
        coarse.pass(0);
        // What is known of the server's time comes from another clock.
        coarse.rig = coarse.rig.remount().await;
        coarse.other = coarse.other.remount().await;
        coarse
    }

    fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        for rig in [&self.rig, &self.other] {
            rig.clock.advance(Duration::from_millis(ms));
        }
        let told = self.now_ms / self.granule_ms * self.granule_ms;
        let (sec, nsec) = (told / 1000, told % 1000 * 1_000_000);
        let time = Time { sec: i64::try_from(sec).unwrap(), nsec: u32::try_from(nsec).unwrap() };
        self.rig.server.set_time(time);
    }

    /// The server's clock is set back, and time passes there as it does here.
    fn set_back(&mut self, ms: u64) {
        self.now_ms -= ms;
        self.pass(0);
    }

    /// Another client's change shows that the clock was set back.
    async fn show_time(&self) {
        self.other.put("shown", self.now_ms.to_string().as_bytes()).await;
        self.rig.cat("shown").await;
    }

    /// A step of the clock: none, a part of a granule, or more than one.
    fn pass_some(&mut self, random: &mut Random) {
        let granule = self.granule_ms;
        self.pass([0, granule / 4, granule / 2, granule, 3 * granule][random.below(5) as usize]);
    }
}

async fn overwrite(rig: &Rig, name: &str, byte: u8) {
    let open = rig.open(&root(), name, WRITE).await.unwrap();
    open.write(0, &[byte; 8]).await.unwrap();
    open.close().await.unwrap();
}

async fn make(rig: &Rig, name: &str) {
    let made = rig.client.make(&root(), Ino::ROOT, OsStr::new(name), New::File, SetAttr::default());
    made.wait().await.unwrap();
}

/// An edit of the same size, just after the file was read or written here: the next open sees it,
/// at once and after a remount.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edit_of_the_same_size_within_a_granule_is_seen() {
    for granule_ms in [SECOND_MS, 2 * SECOND_MS, 10] {
        for (ours, remounts, cache_data) in
            [(false, false, true), (true, false, true), (false, true, true), (true, true, true)]
                .into_iter()
                .chain([(false, false, false), (true, false, false)])
        {
            let options = Options { cache_data, ..Options::default() };
            let mut at = Coarse::new(granule_ms, options).await;
            at.other.put("file", b"aaaaaaaa").await;
            assert_eq!(at.rig.cat("file").await, b"aaaaaaaa");
            if ours {
                overwrite(&at.rig, "file", b'b').await;
            }
            overwrite(&at.other, "file", b'c').await;
            if remounts {
                at.rig = at.rig.remount().await;
            }
            let seen = at.rig.cat("file").await;
            assert_eq!(seen, b"cccccccc", "{granule_ms} ms, {ours}, {remounts}, {cache_data}");
            at.pass(5 * SECOND_MS);
            assert_eq!(at.rig.cat("file").await, b"cccccccc");
            at.rig.server.reset_calls();
            assert_eq!(at.rig.cat("file").await, b"cccccccc");
            assert_eq!(at.rig.server.calls("read"), u64::from(!cache_data), "it is believed now");
        }
    }
}

/// The same edit after the server's clock was set back: of a version that was read since then, and
/// of one that was read long before, when the clock has the time of that version again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edit_within_a_granule_is_seen_after_the_clock_was_set_back() {
    for granule_ms in [SECOND_MS, 2 * SECOND_MS, 10] {
        for (by_us, remounts) in [(false, false), (true, false), (false, true), (true, true)] {
            let what = format!("{granule_ms} ms, shown by us: {by_us}, {remounts}");
            let mut at = Coarse::new(granule_ms, Options::default()).await;
            for name in ["read", "long", "other", "shown"] {
                at.other.put(name, b"aaaaaaaa").await;
            }
            at.pass(10 * SECOND_MS);
            for name in ["read", "long", "other", "shown"] {
                at.rig.cat(name).await;
            }
            at.pass(10 * SECOND_MS);
            at.rig.cat("shown").await;
            at.set_back(60 * SECOND_MS);
            at.other.put("new", b"aaaaaaaa").await;
            if remounts {
                at.rig = at.rig.remount().await;
            }
            if by_us {
                overwrite(&at.rig, "shown", b'u').await;
            } else {
                at.show_time().await;
            }

            // What is of the future by now does not tell the time.
            at.rig.names().await;
            at.rig.cat("other").await;
            for (name, byte) in [("new", b'b'), ("read", b'b'), ("read", b'c'), ("read", b'd')] {
                at.rig.cat(name).await;
                overwrite(&at.other, name, byte).await;
                assert_eq!(at.rig.cat(name).await, [byte; 8], "{what}, {name}");
            }
            at.pass(5 * SECOND_MS);
            at.show_time().await;
            at.rig.cat("new").await;
            at.rig.server.reset_calls();
            at.rig.cat("new").await;
            assert_eq!(at.rig.server.calls("read"), 0, "{what}: it is believed now");

            // Again the time at which it was made.
            at.pass(35 * SECOND_MS);
            assert_eq!(at.now_ms, Coarse::NOON_MS);
            assert_eq!(at.rig.cat("long").await, b"aaaaaaaa", "{what}");
            overwrite(&at.other, "long", b'b').await;
            assert_eq!(at.rig.cat("long").await, b"bbbbbbbb", "{what}");
        }
    }
}

/// A file that is made or removed just after its directory was listed: names are requested again
/// when they expire.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_made_within_the_granule_of_a_listing_is_seen() {
    for granule_ms in [SECOND_MS, 2 * SECOND_MS, 10] {
        for (remounts, noac, ours) in [(false, true), (true, false), (false, false)]
            .into_iter()
            .flat_map(|(a, b)| [false, true].map(|ours| (a, b, ours)))
        {
            let options = Options::default();
            let options = if noac { options.no_attribute_cache() } else { options };
            let mut at = Coarse::new(granule_ms, options).await;
            make(&at.other, "gone").await;
            assert_eq!(at.rig.names().await, ["gone"]);
            assert!(at.rig.find("new").await.is_none());
            if ours {
                make(&at.rig, "ours").await;
            }
            make(&at.other, "new").await;
            at.other.remove("gone").await.unwrap();
            if remounts {
                at.rig = at.rig.remount().await;
            } else if !noac {
                at.pass(70 * SECOND_MS);
            }
            assert!(at.rig.find("new").await.is_some(), "{granule_ms} ms, {remounts}, {noac}");
            let names = at.rig.names().await;
            let expected: &[&str] = if ours { &["new", "ours"] } else { &["new"] };
            assert_eq!(names, expected, "{granule_ms} ms, {remounts}, {noac}");
            assert!(at.rig.find("gone").await.is_none(), "{granule_ms} ms, {remounts}, {noac}");
        }
    }
}

/// Both machines change files and names at random moments. An open sees the last change of the
/// file; with `noac` names too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_work_on_a_coarse_clock_is_seen() {
    let first = std::env::var("LARDER_SEED").ok().map(|seed| seed.parse().unwrap());
    for seed in first.map_or(1..7, |seed: u64| seed..seed + 1) {
        for granule_ms in [SECOND_MS, 2 * SECOND_MS, 10] {
            println!("LARDER_SEED={seed}, {granule_ms} ms");
            work(seed, granule_ms).await;
        }
    }
}

async fn work(seed: u64, granule_ms: u64) {
    let mut random = Random(seed);
    let mut at = Coarse::new(granule_ms, Options::default().no_attribute_cache()).await;
    make(&at.other, "file").await;
    let (mut names, mut byte) = (BTreeSet::from(["file".to_owned()]), b'a');
    overwrite(&at.other, "file", byte).await;
    for step in 0..200 {
        at.pass_some(&mut random);
        let foreign = random.below(2) == 0;
        let who = if foreign { &at.other } else { &at.rig };
        match random.below(8) {
            0..3 => {
                byte = byte.wrapping_add(1);
                overwrite(who, "file", byte).await;
            }
            3..6 => assert_eq!(who.cat("file").await, [byte; 8], "step {step}, foreign: {foreign}"),
            6 => {
                let name = format!("name{}", random.below(3));
                if names.remove(&name) {
                    who.remove(&name).await.unwrap();
                } else {
                    make(who, &name).await;
                    names.insert(name);
                }
            }
            _ => {
                let expected: Vec<_> = names.iter().cloned().collect();
                assert_eq!(who.names().await, expected, "step {step}, foreign: {foreign}");
            }
        }
        if random.below(20) == 0 {
            at.rig = at.rig.remount().await;
        }
    }
}
