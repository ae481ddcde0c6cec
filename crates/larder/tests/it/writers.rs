//! Two writers of one file: after our own close, what the other one has closed is visible,
//! whichever of them began first.

use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::harness::pattern;
use crate::rounds::{LATE_MAX, Of, Other, Random, Round, Stage, configurations, hold};

/// When the other one writes.
#[derive(Clone, Copy)]
enum When {
    /// Between our write and our close.
    Before,
    /// Again and again, while we close.
    Meanwhile,
}

/// We write beyond the start of a file and close it, the other one writes at the start.
struct TwoWriters {
    when: When,
    /// How much we write at once.
    len: usize,
    /// The file's content.
    bytes: Vec<u8>,
}

/// Where we write.
const OURS: usize = 150_000;

fn open(path: &std::path::Path) -> Result<fs::File, String> {
    let opened = fs::File::options().read(true).write(true).open(path);
    opened.map_err(|error| format!("open of {}: {error}", path.display()))
}

fn put(file: &fs::File, bytes: &[u8], at: usize) -> Result<(), String> {
    file.write_all_at(bytes, at as u64).map_err(|error| format!("write: {error}"))
}

impl TwoWriters {
    fn new(stage: &Stage, when: When, len: usize) -> TwoWriters {
        let bytes = pattern(1, OURS + len + 100_000);
        fs::write(stage.there("shared"), &bytes).unwrap();
        fs::read(stage.here("shared")).unwrap();
        TwoWriters { when, len, bytes }
    }

    fn write_there(stage: &Stage, number: u64) -> Result<[u8; 8], String> {
        put(&open(&stage.there("shared"))?, &number.to_le_bytes(), 0)?;
        Ok(number.to_le_bytes())
    }

    /// The other one's last write, and ours, while they overlap.
    fn write_both(&self, stage: &Stage, ours: &[u8], number: u64) -> Result<[u8; 8], String> {
        let file = open(&stage.here("shared"))?;
        put(&file, ours, OURS)?;
        if let When::Before = self.when {
            return TwoWriters::write_there(stage, number);
        }
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                for more in 0.. {
                    let last = TwoWriters::write_there(stage, number.wrapping_add(more))?;
                    if over.load(Ordering::SeqCst) {
                        return Ok(last);
                    }
                }
                unreachable!("the numbers do not end")
            });
            drop(file);
            over.store(true, Ordering::SeqCst);
            other.join().unwrap()
        })
    }
}

impl Round for TwoWriters {
    fn once(&mut self, stage: &Stage, random: &mut Random) -> Result<(), String> {
        let (seed, number) = (random.below(u64::MAX), random.below(u64::MAX));
        let ours = pattern(seed, self.len);
        let theirs = self.write_both(stage, &ours, number)?;
        self.bytes[..8].copy_from_slice(&theirs);
        self.bytes[OURS..OURS + self.len].copy_from_slice(&ours);
        let deadline = Instant::now() + LATE_MAX;
        loop {
            let seen = fs::read(stage.here("shared")).map_err(|error| format!("read: {error}"))?;
            let same = [&seen[..8] == theirs.as_slice(), seen[OURS..] == self.bytes[OURS..]];
            if seen == self.bytes {
                return Ok(());
            }
            // If the server notifies of changes, it may do so a moment later.
            if !stage.leases || Instant::now() > deadline {
                return Err(format!("theirs and ours are there: {same:?}"));
            }
        }
    }
}

fn check(when: When, len: usize, of: Of, chosen: &[(Other, usize)]) {
    let what = match when {
        When::Before => "two writers, one after the other",
        When::Meanwhile => "two writers at the same time",
    };
    let what = format!("{what}, {len} bytes");
    hold(&what, &configurations(of, chosen), |stage| TwoWriters::new(stage, when, len));
}

#[test]
fn what_another_closed_is_there_after_a_close_of_our_own_on_our_exports() {
    check(When::Before, 8, Of::Own, &[(Other::Mount, 0), (Other::Server, 1)]);
    check(When::Before, 8, Of::Shared, &[(Other::Mount, 2), (Other::Server, 0)]);
}

#[test]
fn what_another_closed_is_there_after_a_close_of_our_own_on_other_servers() {
    check(When::Before, 8, Of::Ganesha, &[(Other::Mount, 0), (Other::Server, 1)]);
}

#[test]
fn what_another_closed_is_there_after_a_close_of_our_own_on_samba() {
    check(When::Before, 8, Of::Samba, &[(Other::Mount, 0), (Other::Server, 6)]);
}

#[test]
fn what_another_writes_during_a_close_of_our_own_is_there_on_samba() {
    check(When::Meanwhile, 8, Of::Samba, &[(Other::Mount, 6), (Other::Server, 0)]);
}

#[test]
fn what_another_writes_during_a_close_of_our_own_is_there_on_our_exports() {
    check(When::Meanwhile, 8, Of::Own, &[(Other::Mount, 0), (Other::Server, 0)]);
    check(When::Meanwhile, 8, Of::Shared, &[(Other::Mount, 1), (Other::Server, 0)]);
}

#[test]
fn what_another_writes_during_a_close_of_our_own_is_there_on_other_servers() {
    check(When::Meanwhile, 8, Of::Ganesha, &[(Other::Mount, 0), (Other::Server, 0)]);
}

#[test]
fn what_two_mounts_of_a_volume_write_is_there() {
    check(When::Before, 8, Of::Volume, &[(Other::Mount, 0)]);
    check(When::Meanwhile, 8, Of::Volume, &[(Other::Mount, 1)]);
}

/// So much that it takes many requests; a round takes long, so there are few without
/// `LARDER_ROUNDS`.
#[test]
fn what_another_writes_while_much_is_sent_is_there() {
    const LEN: usize = 5 << 20;
    check(When::Meanwhile, LEN, Of::Own, &[(Other::Mount, 0)]);
    check(When::Meanwhile, LEN, Of::Ganesha, &[(Other::Server, 0)]);
}
