//! Baseline read and write of the RPC layer (CITI, University of Michigan, 2001): the work of
//! Connectathon's basic test 5, swept over file sizes.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};

use super::pieces::Content;
use super::{Before, Outcome, ROUNDS, Size, Suite, Test, WorkDir};
use crate::data::{Pattern, Stamped, Stamps};
use crate::stand::Confinement;

const PIECE_BYTES: usize = 8 << 10;
/// A megabyte, as Connectathon counts.
const MB: u64 = 1 << 20;
/// A touched file's time moves by this at least: some file systems tell whole seconds only.
const TOUCH: Duration = Duration::from_secs(1);

/// The server's resources: less memory than the largest files need, and a disk that is slower than
/// the link.
const SERVER: Confinement = Confinement { memory_bytes: 120 << 20, disk_bytes_per_s: 60 << 20 };

/// The suite.
pub(super) fn suite(size: Size) -> Suite {
    let memory = Stamped::new();
    // A knee needs two sizes on either side of it. Our export's lies below 60 MB, since our process
    // takes part of the memory; that of nfs-ganesha, which has more, between 100 and 180.
    let sizes: &[u64] = size.pick_of(
        &[1, 2],
        &[10, 20, 40, 60, 100, 180, 200],
        &[1, 5, 20, 40, 60, 80, 100, 120, 150, 200, 250, 300, 400],
    );
    Suite {
        name: "basic5",
        method: method(),
        tests: sizes.iter().flat_map(|megabytes| tests(*megabytes, &memory)).collect(),
        furnish: Arc::new(|_| Ok(())),
        link_bits_per_s: None,
        own_mounts: false,
        confinement: Some(SERVER),
        disk_latency: None,
        rounds: ROUNDS,
    }
}

fn method() -> Vec<String> {
    [
        "write: a file is made, written from memory in pieces of 8 KiB and closed; all three are timed. read: it is opened, read back in pieces of 8 KiB and closed. A MB is 2^20 bytes. The bytes do not repeat within 32 KiB, and each page has a mark of its own.",
        "Before each read the file is touched on the server, so that no cache of the client holds its present version and every byte comes from the server again. The server keeps what its memory holds, as the published one did: nothing is dropped. Of a target whose directory on the server is not known, the file is not touched: what it holds counts.",
        "The servers that are started for the run are confined: each has 120 MiB of memory, page cache and processes together (nfs-ganesha 60 MiB more, and what its processes have taken for themselves: over UDP it keeps the bytes of each READ, so it is started again before each round), and shares a disk of 60 MiB/s for reads and as much for writes (a loop device, throttled by control groups). A close waits until the file is on that disk, so writes do not outrun it at any size.",
        "Traps of the original that are avoided: nothing reads the file between the write and the timed read, whose bytes are compared when the clock is stopped; and the result is bytes by elapsed time, none of the seconds that the original prints.",
        "Every byte is compared after the read, then the file is removed.",
    ]
    .map(str::to_owned)
    .to_vec()
}

fn tests(megabytes: u64, memory: &Stamped) -> [Test; 2] {
    let memory = memory.clone();
    let test = |name, work| {
        Test::rate(name, 1, "B/s", Before::Nothing, work).at("file size MB", megabytes as f64)
    };
    [
        test("write", Arc::new(move |place: &WorkDir| write(place, megabytes, memory.clone()))),
        test("read", Arc::new(move |place: &WorkDir| read(place, megabytes)))
            .prepared(move |place| invalidate(place, &name(megabytes))),
    ]
}

fn name(megabytes: u64) -> String {
    format!("file-{megabytes}")
}

fn content(megabytes: u64) -> Content {
    let pattern = Pattern(0xba5_1c50_0000 + megabytes);
    Content { pattern, bytes: megabytes * MB, piece_bytes: PIECE_BYTES }
}

fn write(place: &WorkDir, megabytes: u64, mut memory: Stamped) -> Result<Outcome> {
    let content = content(megabytes);
    content.write(&place.at(&name(megabytes)), &mut memory)?;
    Ok(Outcome::of_amount(content.bytes as f64))
}

fn read(place: &WorkDir, megabytes: u64) -> Result<Outcome> {
    let (content, path) = (content(megabytes), place.at(&name(megabytes)));
    let mut stamps = Stamps::with_room_for(content.bytes);
    content.read(&path, &mut [0; PIECE_BYTES], &mut stamps)?;
    Ok(Outcome::of_amount(content.bytes as f64).and_check(move || {
        stamps.check()?;
        content.check(&path)?;
        Ok(fs::remove_file(path)?)
    }))
}

/// Invalidates the file at the client, if the server's directory is known.
fn invalidate(place: &WorkDir, name: &str) -> Result<&'static str> {
    let Some(back) = &place.back else { return Ok("") };
    // Unwritten data of the client would move the time again, after the touch.
    File::open(place.at(name))?.sync_all()?;
    touch(&back.join(name))?;
    Ok("then touched on the server")
}

fn touch(path: &Path) -> Result<()> {
    let file = File::open(path).with_context(|| format!("{} on the server", path.display()))?;
    let modified = file.metadata()?.modified()?;
    Ok(file.set_modified(SystemTime::now().max(modified + TOUCH))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_touch_moves_the_time_and_keeps_the_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let (front, back) = (dir.path().join("front"), dir.path().join("back"));
        fs::create_dir_all(&back).unwrap();
        std::os::unix::fs::symlink(&back, &front).unwrap();
        let place = WorkDir { back: Some(back.clone()), ..WorkDir::local(&front, 0) };
        fs::write(back.join("f"), "bytes").unwrap();
        let modified = || back.join("f").metadata().unwrap().modified().unwrap();
        for _ in 0..2 {
            let before = modified();
            invalidate(&place, "f").unwrap();
            assert!(modified() >= before + TOUCH);
        }
        assert_eq!(fs::read(back.join("f")).unwrap(), b"bytes");
        let before = modified();
        invalidate(&WorkDir { back: None, ..place.clone() }, "f").unwrap();
        assert_eq!(modified(), before);
        assert!(invalidate(&place, "missing").is_err());
    }
}
