//! Tests of the hoard on a simulated disk and clock, without a mount.

use std::ffi::OsStr;
use std::pin::pin;

use larder_cache::Config;
use larder_client::{Options, Start};
use larder_io::{Disk, DiskFile, OpenMode, SimClock, SimDisk};
use larder_vfs::{Lookup, MemRemote, New, OpenFlags, Remote, SetAttr, Stability};

use super::*;

const SIZE: usize = 3 * CHUNK_BYTES as usize + 100;
const DAMAGED_AT: u64 = CHUNK_BYTES + 7;
/// The longest pause of a round or a comparison.
const PAUSE_MAX: Duration = Duration::from_millis(200);
const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);

/// A hoard of everything, and the server.
struct Rig {
    server: Arc<MemRemote>,
    clock: Arc<SimClock>,
    disk: SimDisk,
    rounds: Rounds,
}

/// Runs a test with one thread for its tasks and one for what blocks: no time passes while the
/// latter has something to do.
fn on_one_thread(test: impl Future<Output = ()>) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().max_blocking_threads(1).build().unwrap().block_on(test);
}

impl Rig {
    async fn new(files: &[&str]) -> Rig {
        let (server, clock) = (Arc::new(MemRemote::new()), Arc::new(SimClock::new()));
        clock.advance(Duration::from_secs(1000));
        let (other, root) = (server.another_client(), Cred::root());
        let top = other.root().await.unwrap().handle;
        for name in files {
            let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
            let made = other.make(&root, &top, OsStr::new(name), New::File, set).await.unwrap();
            let (file, bytes) = (&made.found.handle, content(name).into());
            other.write(&root, file, None, 0, bytes, Stability::FileSync).await.unwrap();
        }
        let disk = SimDisk::new();
        let config = Config { checkpoint_interval: None, ..Config::new(b"volume") };
        let cache = Cache::open(Arc::new(disk.clone()), clock.clone(), config).unwrap();
        let (options, start) = (Options::default(), Start::NewMount);
        let made = Client::new(server.clone(), cache.clone(), clock.clone(), options, 1, start);
        let client = made.await.unwrap();
        let (is_due, last, checks) = (Notify::new(), Mutex::default(), Checks::new(None));
        let rounds = Rounds { client, cache, clock: clock.clone(), is_due, last, checks };
        let hoarded = Hoarded { priority: 1, uid: 0, gid: 0, groups: vec![], verified_sec: None };
        rounds.cache.pin_tree(FileNo::ROOT, Some(&hoarded.encode()));
        Rig { server, clock, disk, rounds }
    }

    /// Lets time pass as far as the work waits for it, on the runtime of [`on_one_thread`].
    async fn drive<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        // What was given to the other thread earlier is done when this is.
        let others = async || tokio::task::spawn_blocking(|| ()).await.unwrap();
        loop {
            for _ in 0..2 {
                tokio::select! {
                    biased;
                    done = &mut work => return done,
                    () = others() => {}
                }
                tokio::task::yield_now().await;
            }
            let now = self.clock.instant();
            let pause = self.clock.next_wake().map(|next| next.saturating_duration_since(now));
            // No longer one: the work may be waiting for another thread.
            if let Some(pause) = pause.filter(|pause| *pause <= PAUSE_MAX) {
                self.clock.advance(pause);
            }
        }
    }

    /// A round, and the comparison that follows it.
    async fn round(&self) {
        let trees = self.drive(self.rounds.look_after()).await.expect("the server is there");
        self.drive(self.rounds.check_due(trees)).await;
    }

    async fn read(&self, name: &str) -> Vec<u8> {
        let (client, root) = (&self.rounds.client, Cred::root());
        let found = self.drive(client.lookup(&root, Ino::ROOT, OsStr::new(name)).wait()).await;
        let Ok(Lookup::Found(Entry { ino, .. })) = found else { panic!("not there") };
        let open = self.drive(client.open(&root, ino, OpenFlags::READ).wait()).await.unwrap().id;
        let len = u32::try_from(SIZE).unwrap();
        let read = self.drive(client.read(&root, ino, Some(open), 0, len).wait()).await;
        client.release(ino, open).wait().await.unwrap();
        read.unwrap().to_vec()
    }

    /// The local copy of a file.
    fn local(&self, name: &str) -> Arc<dyn DiskFile> {
        let content = content(name);
        let files = self.disk.files().into_iter().map(|(path, _)| path);
        let is_it = |file: &Arc<dyn DiskFile>| {
            let mut found = [0; 9];
            file.read_exact_at(&mut found, 0).is_ok() && found[..] == content[..9]
        };
        let data = files.filter(|path| path.starts_with("data/"));
        let mut data = data.map(|path| self.disk.open(&path, OpenMode::Existing).unwrap());
        data.find(is_it).expect("it is on the disk")
    }

    /// A byte of the local copy of a file changes.
    fn damage(&self, name: &str) {
        let byte = !content(name)[usize::try_from(DAMAGED_AT).unwrap()];
        self.local(name).write_at(&[byte], DAMAGED_AT).unwrap();
    }

    /// Whether the local copy of a file has its bytes.
    fn is_right(&self, name: &str) -> bool {
        let mut found = vec![0; SIZE];
        self.local(name).read_exact_at(&mut found, 0).unwrap();
        found == content(name)
    }

    fn status(&self) -> HoardedTree {
        self.rounds.status().remove(0)
    }
}

/// Whether a tree was compared after its interval was over. However much time [`Rig::drive`] lets
/// pass while other threads work, it is far less.
fn is_since_the_interval(verified_age_s: Option<u64>) -> bool {
    verified_age_s.is_some_and(|age| age < WEEK.as_secs() / 2)
}

fn content(name: &str) -> Vec<u8> {
    name.bytes().cycle().take(SIZE).collect()
}

/// A byte of a local file changes. When the interval is over that is found, and a reader has the
/// right bytes again.
#[test]
fn what_is_damaged_here_is_found_at_its_interval_and_fetched_anew() {
    on_one_thread(async {
        let names = ["first file", "second file", "third file"];
        let rig = Rig::new(&names).await;
        assert_eq!(rig.status().verified_age_s, None);
        rig.round().await;
        // What was just fetched has been compared, too.
        let HoardedTree { verified_age_s, wrong_chunks, whole_files, .. } = rig.status();
        assert!(verified_age_s.is_some() && whole_files == 3 && wrong_chunks == 0);
        rig.damage(names[1]);
        rig.clock.advance(WEEK / 2);
        rig.round().await;
        assert_eq!(rig.status().wrong_chunks, 0, "it is not due");
        assert!(!rig.is_right(names[1]), "nobody has noticed");
        rig.clock.advance(WEEK / 2);
        let reads = rig.server.calls("read");
        rig.round().await;
        assert_eq!(rig.status().wrong_chunks, 1);
        tokio::select! {
            biased;
            () = rig.rounds.is_due.notified() => {}
            () = std::future::ready(()) => panic!("a round is due"),
        }
        rig.round().await;
        assert_eq!(rig.server.calls("read"), reads + 1, "nothing else was fetched");
        for name in names {
            assert!(rig.is_right(name), "{name}");
            assert!(rig.read(name).await == content(name), "{name}");
        }
        let HoardedTree { verified_age_s, wrong_chunks, whole_files, .. } = rig.status();
        assert!(is_since_the_interval(verified_age_s), "{verified_age_s:?}");
        assert_eq!((whole_files, wrong_chunks), (3, 1));
    });
}

/// A comparison that is interrupted goes on where it was, and a clock that was set back begins
/// another one.
#[test]
fn a_comparison_goes_on_behind_a_round() {
    on_one_thread(async {
        let names = ["first file", "second file"];
        let rig = Rig::new(&names).await;
        rig.round().await;
        rig.clock.advance(WEEK);
        rig.damage(names[0]);
        rig.damage(names[1]);
        let mut wrong = Vec::new();
        for _ in 0..2 {
            let trees = rig.drive(rig.rounds.look_after()).await.unwrap();
            // A round comes in the pause behind a file's bytes.
            tokio::select! {
                biased;
                () = rig.rounds.check_due(trees) => panic!("there is a pause"),
                () = rig.rounds.is_due.notified() => {}
            }
            wrong.push(rig.status().wrong_chunks);
        }
        assert_eq!(wrong, [1, 2]);
        assert!(rig.status().verified_age_s >= Some(WEEK.as_secs()), "it is not done");
        rig.round().await;
        assert!(is_since_the_interval(rig.status().verified_age_s));
        rig.clock.set_wall_by(-100_000);
        rig.damage(names[0]);
        rig.round().await;
        assert_eq!(rig.status().wrong_chunks, 3);
    });
}

/// All trees of up to five files of up to two chunks, and all rooms for them: nothing is lost
/// or counted twice, what fits does, and a file is left out only if there was no room for it at
/// its turn.
#[test]
fn room_goes_to_files_in_their_order() {
    const SIZES: [u64; 4] = [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1];
    let chunks_of =
        |files: &[File]| -> u64 { files.iter().map(|file| file.bytes.div_ceil(CHUNK_BYTES)).sum() };
    let mut cases = 0;
    for chosen in 0..4usize.pow(5) {
        let files: Vec<File> =
            (0..5).map(|at| File { ino: Ino(at), bytes: SIZES[chosen >> (2 * at) & 3] }).collect();
        for chunks in 0..=chunks_of(&files) {
            let mut room = chunks * CHUNK_BYTES;
            let (fits, left_out) = divide(&files, &mut room);
            assert_eq!(chunks_of(&fits) * CHUNK_BYTES + room, chunks * CHUNK_BYTES);
            let mut all = [&fits[..], &left_out[..]].concat();
            all.sort_by_key(|file| file.ino.0);
            assert_eq!(all, files);
            for file in left_out {
                let is_earlier = |fit: &&File| fit.ino.0 < file.ino.0;
                let earlier: Vec<File> = fits.iter().filter(is_earlier).copied().collect();
                assert!(chunks_of(&earlier) + chunks_of(&[file]) > chunks, "{files:?}");
            }
            cases += 1;
        }
    }
    assert!(cases > 5000, "{cases}");
}

#[test]
fn a_pin_without_a_priority_is_not_hoarded() {
    let hoarded = Hoarded { priority: 7, uid: 1, gid: 2, groups: vec![3], verified_sec: Some(4) };
    assert_eq!(Hoarded::decode(&hoarded.encode()), Some(hoarded.clone()));
    // As earlier versions wrote it.
    let former = br#"{"priority":7,"uid":1,"gid":2,"groups":[3]}"#;
    let unverified = Hoarded { verified_sec: None, ..hoarded };
    assert_eq!(Hoarded::decode(former), Some(unverified));
    assert_eq!(Hoarded::decode(b""), None);
}
