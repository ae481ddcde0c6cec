//! Rounds: one small operation, repeated while other processes keep the same mount busy, on each
//! server and each kind of mount. This finds failures that occur once in a hundred times, which a
//! single attempt does not.
//!
//! A kind of round is a [`Round`]. Each test takes a few of the configurations, and 200 rounds of
//! each; `LARDER_ROUNDS=2000` makes more of them, `LARDER_ROUNDS_ALL=TEXT` takes all configurations
//! whose description has that text in it (all, without a text), and `LARDER_SEED=N` the random
//! numbers of an earlier run.

use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::harness::{Kind, Mount, Server, pattern};

/// Rounds in each configuration unless asked otherwise.
const ROUNDS: u64 = 200;

/// Processes that keep the mount busy.
const BUSY: u64 = 4;

/// Whether the kernel offers io_uring. Not every kernel has it.
pub(crate) const URING_PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// How long after a change the server may still not tell it: its notification about a lease comes
/// late (docs/semantics.md, leases), or it shows the old time as long as the file is open at it. A
/// busy machine delays both notifications and closes.
pub(crate) const LATE_MAX: Duration = Duration::from_secs(5);

/// Failures that are shown of each configuration.
const SHOWN_MAX: usize = 5;

/// One small thing that must come out right each time.
pub(crate) trait Round {
    /// Does it once more; `Err` says what came out wrong.
    fn once(&mut self, stage: &Stage, random: &mut Random) -> Result<(), String>;

    /// Further remarks on all rounds.
    fn remarks(&self) -> String {
        String::new()
    }
}

/// Which server there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    /// Our own export.
    Own,
    /// Our own export of a directory that others change, too.
    Shared,
    /// nfs-ganesha.
    Ganesha,
    /// Samba.
    Samba,
    /// A volume of our own.
    Volume,
}

impl Of {
    /// Starts one, root not squashed.
    pub(crate) fn start(self) -> Server {
        match self {
            Of::Own => Server::start(Kind::Larder),
            Of::Shared => Server::larder(&["--no-root-squash", "--shared"]),
            Of::Ganesha => Server::start(Kind::Ganesha),
            Of::Samba => Server::start(Kind::Samba),
            Of::Volume => Server::start(Kind::Volume),
        }
    }
}

/// What else changes files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Other {
    /// A process on the server's machine, past the server.
    Server,
    /// Another mount.
    Mount,
}

/// One server, one kind of mount, one other.
#[derive(Clone, Copy)]
pub(crate) struct Configuration {
    pub(crate) of: Of,
    pub(crate) other: Other,
    pub(crate) options: &'static [&'static str],
}

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Configuration { of, other, options } = self;
        write!(f, "{of:?}, the other is a {other:?}, options {options:?}")
    }
}

/// All kinds of mounts.
const MOUNTS: [&[&str]; 7] = [
    &[],
    &["nopassthrough"],
    &["plain"],
    &["transport=uring"],
    &["transport=uring", "nopassthrough"],
    &["transport=uring", "plain"],
    // Other servers give no leases: there it is as the first.
    &["nolease"],
];

/// The configurations of this server to test: the given ones, or those that `LARDER_ROUNDS_ALL`
/// selects.
pub(crate) fn configurations(of: Of, chosen: &[(Other, usize)]) -> Vec<Configuration> {
    let with = |other, mount| Configuration { of, other, options: MOUNTS[mount] };
    let mut wanted: Vec<_> = match std::env::var("LARDER_ROUNDS_ALL") {
        Err(_) => chosen.iter().map(|&(other, mount)| with(other, mount)).collect(),
        Ok(text) => [Other::Server, Other::Mount]
            .into_iter()
            .flat_map(|other| (0..MOUNTS.len()).map(move |mount| with(other, mount)))
            .filter(|configuration| configuration.to_string().contains(&text))
            .collect(),
    };
    let has = |configuration: &Configuration, option| configuration.options.contains(&option);
    wanted.retain(|one| of == Of::Samba || !has(one, "nolease"));
    // Nobody gets past the servers of a volume.
    wanted.retain(|one| of != Of::Volume || one.other == Other::Mount);
    if !Path::new(URING_PARAMETER).exists() {
        wanted.retain(|one| !has(one, "transport=uring"));
    }
    wanted
}

/// A server with a mount, a process that changes its files, and one that keeps the mount busy.
pub(crate) struct Stage {
    /// Dropped first: they have files open.
    _busy: Vec<Busy>,
    /// The mount that is tried.
    pub(crate) mount: Mount,
    /// Where the other one's files are.
    elsewhere: Elsewhere,
    /// The server notifies of changes, and opens send no request.
    pub(crate) leases: bool,
    /// As long as the server has a file open, it tells the time that the file had when it was
    /// opened, whatever is changed past it: only another size shows such a change. (Samba.)
    keeps_times: bool,
    server: Server,
}

enum Elsewhere {
    Server,
    Mount(Mount),
}

impl Stage {
    fn set(configuration: &Configuration, seed: u64) -> Stage {
        let Configuration { of, other, options } = *configuration;
        let server = of.start();
        let mut options = options.to_vec();
        // A change that bypasses Samba breaks no lease (docs/semantics.md).
        let leases = (of, other) == (Of::Samba, Other::Mount) && !options.contains(&"nolease");
        if of == Of::Samba && !leases {
            options.push("nolease");
        }
        let keeps_times = (of, other) == (Of::Samba, Other::Server);
        let mount = mount_over(Mount::unmounted(&server, &options), &options);
        let elsewhere = match other {
            Other::Server => Elsewhere::Server,
            Other::Mount => Elsewhere::Mount(Mount::new(&server, &[])),
        };
        let busy = |number| Busy::begin(&mount.path(&format!("busy{number}")), seed + number);
        let busy = (0..BUSY).map(busy).collect();
        Stage { _busy: busy, mount, elsewhere, leases, keeps_times, server }
    }

    /// A file as it is tried.
    pub(crate) fn here(&self, name: &str) -> PathBuf {
        self.mount.path(name)
    }

    /// The same file as the other one has it.
    pub(crate) fn there(&self, name: &str) -> PathBuf {
        match &self.elsewhere {
            Elsewhere::Server => self.server.path(name),
            Elsewhere::Mount(mount) => mount.path(name),
        }
    }
}

/// Mounts by the transport that the options name.
pub(crate) fn mount_over(mount: Mount, options: &[&str]) -> Mount {
    if options.contains(&"transport=uring") { over_uring(mount) } else { mounted(mount) }
}

fn mounted(mut mount: Mount) -> Mount {
    mount.mount();
    mount
}

/// The kernel offers io_uring to mounts that are made while its parameter says so.
fn over_uring(mount: Mount) -> Mount {
    static CHANGED: Mutex<()> = Mutex::new(());
    let _alone = CHANGED.lock().unwrap_or_else(PoisonError::into_inner);
    let before = fs::read(URING_PARAMETER).unwrap();
    fs::write(URING_PARAMETER, "Y").unwrap();
    let mount = mounted(mount);
    fs::write(URING_PARAMETER, before).unwrap();
    mount
}

/// Random numbers from a seed (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % bound
    }

    /// The size of a file that is read in one request, or in several.
    pub(crate) fn size(&mut self) -> usize {
        let bound = [100, 5000, 70_000, 400_000][self.below(4) as usize];
        usize::try_from(self.below(bound)).unwrap()
    }
}

/// A process that writes, maps, truncates, renames and removes files of its own.
struct Busy(Child);

const BUSY_SCRIPT: &str = r"
import mmap, os, random, sys
top, seed = sys.argv[1], int(sys.argv[2])
random.seed(seed)
os.makedirs(top)
name = lambda: '%s/%d' % (top, random.randrange(6))
def write():
    with open(name(), 'wb') as f: f.write(random.randbytes(random.randrange(100000)))
def change():
    with open(name(), 'r+b') as f:
        f.seek(random.randrange(50000)); f.write(random.randbytes(5000))
def map():
    with open(name(), 'r+b') as f:
        with mmap.mmap(f.fileno(), 0) as m: m[0:1] = b'x'; sum(m[::4096])
def read():
    with open(name(), 'rb') as f: f.read()
def work():
    try: random.choice([write, write, change, map, read, read,
        lambda: os.truncate(name(), random.randrange(50000)),
        lambda: os.rename(name(), name()), lambda: os.remove(name())])()
    except (OSError, ValueError): pass
while True: work()
";

impl Busy {
    fn begin(top: &Path, seed: u64) -> Busy {
        let mut python = Command::new("python3");
        python.args(["-c", BUSY_SCRIPT]).arg(top).arg(seed.to_string()).stdin(Stdio::null());
        Busy(python.spawn().unwrap())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// A process that maps files. Accessing a page beyond the end kills it (SIGBUS).
pub(crate) struct Mapper {
    child: Child,
    paths: ChildStdin,
    answers: BufReader<ChildStdout>,
}

const MAPPER_SCRIPT: &str = r"
import mmap, os, sys
for line in sys.stdin:
    with open(line[:-1], 'rb') as f:
        size = os.fstat(f.fileno()).st_size
        content = mmap.mmap(f.fileno(), size, prot=mmap.PROT_READ)[:] if size else b''
        sys.stdout.buffer.write(b'%d\n' % size + content)
        sys.stdout.buffer.flush()
";

impl Mapper {
    pub(crate) fn start() -> Mapper {
        let mut python = Command::new("python3");
        python.args(["-c", MAPPER_SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = python.spawn().unwrap();
        let (paths, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Mapper { child, paths, answers: BufReader::new(answers) }
    }

    /// The bytes of a file, as a mapping with the size from fstat(2) shows them.
    pub(crate) fn map(&mut self, path: &Path) -> Result<Vec<u8>, String> {
        writeln!(self.paths, "{}", path.display()).unwrap();
        let mut size = String::new();
        if self.answers.read_line(&mut size).unwrap() == 0 {
            let status = self.child.wait().unwrap();
            *self = Mapper::start();
            return Err(format!("to map it ended with {status}"));
        }
        let mut content = vec![0; size.trim().parse().unwrap()];
        self.answers.read_exact(&mut content).unwrap();
        Ok(content)
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Does rounds in each configuration, reports how many came out wrong, and fails if any did.
pub(crate) fn hold<R: Round>(
    what: &str,
    configurations: &[Configuration],
    kind: impl Fn(&Stage) -> R,
) {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let seed = number("LARDER_SEED").unwrap_or(u64::from(since.subsec_nanos()));
    let rounds = number("LARDER_ROUNDS").unwrap_or(ROUNDS);
    let mut failed = Vec::new();
    for configuration in configurations {
        let stage = Stage::set(configuration, seed);
        let (mut round, mut random) = (kind(&stage), Random(seed));
        let begin = Instant::now();
        let mut once = |number| {
            let outcome = round.once(&stage, &mut random);
            outcome.err().map(|text| format!("round {number}: {text}"))
        };
        let wrong: Vec<String> = (0..rounds).filter_map(&mut once).collect();
        let (count, seconds, remarks) = (wrong.len(), begin.elapsed().as_secs(), round.remarks());
        let outcome = format!("{count} wrong of {rounds}{remarks}");
        println!("{what}: {configuration}: {outcome}, in {seconds} s, LARDER_SEED={seed}");
        wrong.iter().take(SHOWN_MAX).for_each(|text| println!("  {text}"));
        failed.extend((count > 0).then(|| configuration.to_string()));
    }
    assert_eq!(failed, [""; 0], "{what}");
}

/// The other client writes and closes a file; then it is opened here, and has the content that was
/// written.
struct CloseToOpen {
    mapper: Mapper,
    /// How long each file was made in its last round.
    sizes: [usize; CloseToOpen::FILES],
    /// Rounds in which the server told of the change after the open.
    late: u64,
}

impl CloseToOpen {
    const FILES: usize = 3;

    /// A lookup that is too early would be remembered as a negative entry for a while.
    fn new(stage: &Stage) -> CloseToOpen {
        for number in 0..CloseToOpen::FILES {
            fs::write(stage.there(&format!("file{number}")), "").unwrap();
        }
        CloseToOpen { mapper: Mapper::start(), sizes: [0; CloseToOpen::FILES], late: 0 }
    }

    fn change(path: &Path, bytes: &[u8], random: &mut Random) -> std::io::Result<()> {
        if random.below(3) > 0 {
            return fs::write(path, bytes);
        }
        let file = fs::File::options().write(true).open(path)?;
        file.set_len(bytes.len() as u64)?;
        file.write_all_at(bytes, 0)
    }

    /// Opens, describes and reads the file, and has it mapped, one after the other: the first of
    /// these to open it may get old attributes.
    fn compare(&mut self, here: &Path, bytes: &[u8], map_first: bool) -> Result<(), String> {
        let failed = |what: &str, error| format!("{what} of {}: {error}", here.display());
        let mapped = if map_first { Some(self.mapper.map(here)?) } else { None };
        let mut file = fs::File::open(here).map_err(|error| failed("open", error))?;
        let seen = file.metadata().map_err(|error| failed("fstat", error))?.len();
        let mut read = Vec::new();
        file.read_to_end(&mut read).map_err(|error| failed("read", error))?;
        let mapped = mapped.map_or_else(|| self.mapper.map(here), Ok)?;
        let same = [seen == bytes.len() as u64, read == bytes, mapped == bytes];
        if same == [true; 3] {
            return Ok(());
        }
        let [size, read, mapped] = [bytes.len(), read.len(), mapped.len()];
        let name = here.file_name().unwrap().display();
        let seen = format!("fstat {seen}, read {read}, mapped {mapped}, same: {same:?}");
        Err(format!("{name} of {size} bytes, map first: {map_first}: {seen}"))
    }
}

impl Round for CloseToOpen {
    fn once(&mut self, stage: &Stage, random: &mut Random) -> Result<(), String> {
        let number = random.below(CloseToOpen::FILES as u64) as usize;
        let (name, size) = (format!("file{number}"), random.size());
        let is_as_long = std::mem::replace(&mut self.sizes[number], size) == size;
        let bytes = pattern(random.below(u64::MAX), size);
        CloseToOpen::change(&stage.there(&name), &bytes, random)
            .map_err(|error| format!("the other's write of {name}: {error}"))?;
        let (here, map_first) = (stage.here(&name), random.below(2) == 0);
        let first = self.compare(&here, &bytes, map_first);
        // With leases, the server notifies of the change, and the other one does not wait for that.
        // Without, the opens of an earlier round may not be closed at the server yet: the kernel
        // closes them here after close(2) has returned.
        let may_be_late = stage.leases || stage.keeps_times && is_as_long;
        if first.is_ok() || !may_be_late {
            return first;
        }
        let deadline = Instant::now() + LATE_MAX;
        self.late += 1;
        loop {
            match self.compare(&here, &bytes, map_first) {
                Err(wrong) if Instant::now() > deadline => {
                    let there =
                        fs::read(stage.server.path(&name)).is_ok_and(|there| there == bytes);
                    return Err(format!("{LATE_MAX:?} later: {wrong}; at the server: {there}"));
                }
                Err(_) => {}
                Ok(()) => return Ok(()),
            }
        }
    }

    fn remarks(&self) -> String {
        if self.late == 0 { String::new() } else { format!(", {} right a moment later", self.late) }
    }
}

fn an_open_sees_what_was_closed_before(of: Of, chosen: &[(Other, usize)]) {
    hold("close to open", &configurations(of, chosen), CloseToOpen::new);
}

#[test]
fn an_open_sees_what_was_closed_before_on_our_export() {
    let chosen = [(Other::Server, 0), (Other::Mount, 3)];
    an_open_sees_what_was_closed_before(Of::Own, &chosen);
}

#[test]
fn an_open_sees_what_was_closed_before_on_a_shared_export() {
    let chosen = [(Other::Server, 1), (Other::Mount, 2)];
    an_open_sees_what_was_closed_before(Of::Shared, &chosen);
}

#[test]
fn an_open_sees_what_was_closed_before_on_ganesha() {
    let chosen = [(Other::Server, 2), (Other::Mount, 0)];
    an_open_sees_what_was_closed_before(Of::Ganesha, &chosen);
}

#[test]
fn an_open_sees_what_was_closed_before_on_samba() {
    let chosen = [(Other::Server, 4), (Other::Mount, 6)];
    an_open_sees_what_was_closed_before(Of::Samba, &chosen);
}

#[test]
fn an_open_sees_what_was_closed_before_on_a_volume() {
    let chosen = [(Other::Mount, 0), (Other::Mount, 2)];
    an_open_sees_what_was_closed_before(Of::Volume, &chosen);
}

/// A file is made directly after an open one was removed and closed, with its write permission or
/// without. Where handles are inode numbers, the new one gets that of the removed one.
struct MadeAnew;

impl MadeAnew {
    fn make(path: &Path, bytes: &[u8], mode: u32) -> std::io::Result<()> {
        let mut made = fs::File::options().write(true).create_new(true).mode(mode).open(path)?;
        let (early, late) = bytes.split_at(bytes.len() / 2);
        made.write_all(early)?;
        made.write_all(late)?;
        // Rust does not report a close that fails.
        made.sync_all()
    }

    fn round(stage: &Stage, random: &mut Random) -> std::io::Result<Option<String>> {
        let (old, new) = (stage.here("old"), stage.here("new"));
        let mut open = fs::File::create(&old)?;
        open.write_all(b"old bytes")?;
        fs::remove_file(&old)?;
        drop(open);
        let mode = if random.below(2) == 0 { 0o444 } else { 0o644 };
        let bytes = pattern(random.below(u64::MAX), random.size());
        MadeAnew::make(&new, &bytes, mode)?;
        let [there, here] = [fs::read(stage.there("new"))?, fs::read(&new)?];
        fs::remove_file(&new)?;
        let wrong = there != bytes || here != bytes;
        let [size, there, here] = [bytes.len(), there.len(), here.len()];
        let text = format!("of {size} bytes with mode {mode:o} {there} are there, {here} here");
        Ok(wrong.then_some(text))
    }
}

impl Round for MadeAnew {
    fn once(&mut self, stage: &Stage, random: &mut Random) -> Result<(), String> {
        let wrong = MadeAnew::round(stage, random).map_err(|error| error.to_string())?;
        wrong.map_or(Ok(()), Err)
    }
}

fn a_file_made_after_a_removal_is_itself(of: Of, other: Other) {
    hold("made anew", &configurations(of, &[(other, 0)]), |_| MadeAnew);
}

#[test]
fn a_file_made_after_a_removal_is_itself_on_our_export() {
    a_file_made_after_a_removal_is_itself(Of::Own, Other::Server);
}

#[test]
fn a_file_made_after_a_removal_is_itself_on_a_shared_export() {
    a_file_made_after_a_removal_is_itself(Of::Shared, Other::Server);
}

#[test]
fn a_file_made_after_a_removal_is_itself_on_ganesha() {
    a_file_made_after_a_removal_is_itself(Of::Ganesha, Other::Server);
}

#[test]
fn a_file_made_after_a_removal_is_itself_on_samba() {
    a_file_made_after_a_removal_is_itself(Of::Samba, Other::Server);
}

#[test]
fn a_file_made_after_a_removal_is_itself_on_a_volume() {
    a_file_made_after_a_removal_is_itself(Of::Volume, Other::Mount);
}
