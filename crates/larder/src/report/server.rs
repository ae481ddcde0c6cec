//! Reports of servers of volumes.

use std::fmt::{self, Write as _};
use std::net::SocketAddr;

use larder_disk::Device;
use larder_meta::Activity;
use larder_meta::disks::DiskState;
use larder_meta::volume::{Copies, CopiesOn};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::archive::ArchiveStatus;
use super::disk;
use super::leaving::LeavingStatus;
use super::loss::{LossTold, LostFile};
use crate::options::{Bytes, Utc};

/// How a server does that runs on this machine.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "server", rename_all = "snake_case")]
pub(crate) enum ServerStatus {
    /// A metadata server, and what it knows of its disks.
    Volume(VolumeStatus),
    /// A metadata server that waits to take a volume over.
    Standby(Standby),
    /// A disk.
    Disk(DiskServed),
}

impl ServerStatus {
    /// The volume that it serves.
    pub(crate) fn volume(&self) -> Option<&VolumeStatus> {
        match self {
            ServerStatus::Volume(status) => Some(status),
            ServerStatus::Standby(_) | ServerStatus::Disk(_) => None,
        }
    }
}

/// How a volume does.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct VolumeStatus {
    pub(crate) volume: String,
    pub(crate) address: String,
    /// Where the metadata is kept.
    pub(crate) engine: String,
    /// Process of the metadata server.
    pub(crate) pid: u32,
    /// Which owner of the volume that is, counted from the first.
    pub(crate) owner: u64,
    pub(crate) size_bytes: u64,
    pub(crate) free_bytes: u64,
    /// Bytes of memory disks, which do not count above.
    #[serde(default)]
    pub(crate) memory_bytes: u64,
    #[serde(default)]
    pub(crate) memory_free_bytes: u64,
    /// Files with bytes on memory disks that go to other disks when they are due.
    #[serde(default)]
    pub(crate) due_files: usize,
    /// Bytes that went there since the metadata server began.
    #[serde(default)]
    pub(crate) moved_bytes: u64,
    /// How long after they were due they were there at the latest.
    #[serde(default)]
    pub(crate) late_max_ms: u64,
    /// Whether there was no room for some that are due.
    #[serde(default)]
    pub(crate) is_short_of_room: bool,
    /// Bytes that left memory disks before they were due, because their machines lacked memory,
    /// since the metadata server began.
    #[serde(default)]
    pub(crate) yielded_bytes: u64,
    /// How many of these are on other memory disks.
    #[serde(default)]
    pub(crate) yielded_to_memory_bytes: u64,
    /// Bytes that were to be on memory disks and went to others, since the metadata server began.
    #[serde(default)]
    pub(crate) instead_bytes: u64,
    /// Whether some did lately.
    #[serde(default)]
    pub(crate) is_short_of_memory: bool,
    /// What is in the archive, if there is one or something is to be there.
    #[serde(default)]
    pub(crate) archive: Option<Box<ArchiveStatus>>,
    /// Files with bytes that were only on memory disks that were restarted.
    #[serde(default)]
    pub(crate) lost: Vec<LostFile>,
    /// The last losses of this kind, 64 at most, the earliest first.
    #[serde(default)]
    pub(crate) losses: Vec<LossTold>,
    /// For how long a disk trusts what it knows without hearing from the metadata server.
    #[serde(default)]
    pub(crate) trust_ms: u64,
    /// The epoch of the disks' keys.
    #[serde(default)]
    pub(crate) key_epoch: u32,
    /// Since when, in seconds since 1970: since the last rotation, or since the metadata server
    /// began.
    #[serde(default)]
    pub(crate) keys_since_s: i64,
    /// How requests to each of its disks are protected. None: as each disk has it, since the volume
    /// is from before volumes had a setup.
    #[serde(default)]
    pub(crate) setup: Option<String>,
    /// On how many disks each block is.
    pub(crate) copies: u32,
    /// How many disks must be added before those in incomplete sets can be used.
    pub(crate) disks_missing: u32,
    /// Clients that have a session.
    pub(crate) sessions: usize,
    /// Leases that these have.
    pub(crate) leases: usize,
    /// Calls that wait until a lease is given back.
    pub(crate) calls_waiting: usize,
    pub(crate) disks: Vec<DiskStatus>,
}

/// How one disk of it does.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct DiskStatus {
    pub(crate) disk: u32,
    pub(crate) address: String,
    pub(crate) state: DiskIs,
    /// Whether it is a memory disk: what is on it is lost with its process.
    #[serde(default)]
    pub(crate) is_memory: bool,
    /// Whether it was reached at the last attempt. New bytes are written to such disks.
    pub(crate) is_there: bool,
    /// Why it was not; or why it did not copy something from another disk, when that was last
    /// tried.
    pub(crate) problem: Option<String>,
    /// The part of it that the volume uses.
    pub(crate) size_bytes: u64,
    /// The free part of that.
    pub(crate) free_bytes: u64,
    /// Disks of the same set have the same blocks.
    pub(crate) set: u32,
    /// Bytes that differ from the others of the set, and are being brought up to date.
    pub(crate) stale_bytes: u64,
    /// Bytes that were brought up to date since this began.
    pub(crate) resilvered_bytes: u64,
    /// How long the rest takes at the rate so far.
    pub(crate) resilver_left_s: Option<u64>,
    /// How far it is, if it is to be removed.
    #[serde(default)]
    pub(crate) leaving: Option<LeavingStatus>,
    /// Capabilities that may have been in use when their group ended because it had no numbers
    /// left.
    pub(crate) unwanted_revocations: u64,
    /// As in `larder disk status --json`; nothing if the disk does not answer.
    pub(crate) status: Option<Value>,
    /// The same for people.
    pub(crate) text: Option<String>,
}

/// The state of a disk, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DiskIs {
    Up,
    Away,
    /// It is there, and to be removed when what is on it is on others.
    Leaving,
    /// It is there, and lacks something that is being brought to it.
    Resilvering,
    /// It lacks something, and nothing is being brought to it.
    Stale,
}

impl DiskStatus {
    pub(crate) fn of(state: &DiskState, copies: &Copies, activity: &Activity) -> DiskStatus {
        let set = state.disk;
        let own = CopiesOn {
            set,
            bytes: 0,
            bytes_free: 0,
            stale_bytes: 0,
            is_memory: false,
            leaves: false,
        };
        let CopiesOn { set, bytes, bytes_free, stale_bytes, is_memory, leaves } =
            copies.disks.get(&state.disk).copied().unwrap_or(own);
        let leaving = leaves.then(|| {
            let progress = activity.leaving.get(&set);
            let left_bytes = bytes.saturating_sub(bytes_free);
            let left = progress.and_then(|progress| progress.time_left(left_bytes));
            LeavingStatus {
                left_bytes,
                moved_bytes: progress.map_or(0, |progress| progress.bytes),
                left_s: left.map(|left| left.as_secs_f64().ceil() as u64),
                is_short_of_room: activity.destaging.is_short,
            }
        });
        let progress = activity.resilvering.get(&state.disk).filter(|_| stale_bytes > 0);
        let left = progress.and_then(|progress| progress.time_left(stale_bytes));
        DiskStatus {
            state: match (state.is_there, stale_bytes, progress) {
                (false, ..) => DiskIs::Away,
                _ if leaves => DiskIs::Leaving,
                // Stale blocks of a memory disk are lost, and nothing is copied there.
                (true, 0, _) => DiskIs::Up,
                _ if is_memory => DiskIs::Up,
                (true, _, Some(_)) => DiskIs::Resilvering,
                (true, _, None) => DiskIs::Stale,
            },
            is_memory,
            leaving,
            set: set.0,
            size_bytes: bytes,
            free_bytes: bytes_free,
            stale_bytes,
            resilvered_bytes: progress.map_or(0, |progress| progress.bytes),
            resilver_left_s: left.map(|left| left.as_secs_f64().ceil() as u64),
            unwanted_revocations: state.unwanted,
            disk: state.disk.0,
            address: state.public.clone(),
            is_there: state.is_there,
            problem: state.problem.clone(),
            status: state.status.as_ref().map(disk::to_json),
            text: state.status.as_ref().map(disk::to_text),
        }
    }

    fn copy(&self) -> String {
        let stale = Bytes(self.stale_bytes);
        match (self.state, self.resilver_left_s) {
            _ if self.stale_bytes == 0 => "up to date".to_owned(),
            (DiskIs::Resilvering, Some(left)) => format!(
                "{stale} are not up to date: {} were brought, about {left} s are left",
                Bytes(self.resilvered_bytes)
            ),
            _ => format!("{stale} are not up to date"),
        }
    }
}

/// A metadata server that stands by.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Standby {
    /// Where it will listen.
    pub(crate) address: String,
    /// Its process.
    pub(crate) pid: u32,
}

/// The state of a disk, as it reports it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct DiskServed {
    pub(crate) address: String,
    /// Its process.
    pub(crate) pid: u32,
    pub(crate) volume: String,
    pub(crate) disk: u32,
    /// Where its bytes are.
    pub(crate) store: String,
    /// How often the metadata server told it to revoke capabilities, since it was started.
    #[serde(default)]
    pub(crate) revocations: u64,
    /// As `larder disk status --json` has it.
    pub(crate) status: Value,
    /// The same for people.
    pub(crate) text: String,
}

impl DiskServed {
    pub(crate) fn of(address: SocketAddr, store: &str, device: &Device) -> DiskServed {
        let (told, identity) = (device.status(), device.identity());
        DiskServed {
            address: address.to_string(),
            pid: std::process::id(),
            volume: identity.volume.to_text(),
            disk: identity.disk.0,
            store: store.to_owned(),
            revocations: device.counts().revocations(),
            status: disk::to_json(&told),
            text: disk::to_text(&told),
        }
    }
}

/// A line of a report: a name, and its value.
fn line(text: &mut String, name: &str, value: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "{name:<9} {value}");
}

impl fmt::Display for ServerStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerStatus::Volume(volume) => volume.fmt(f),
            ServerStatus::Standby(Standby { address, pid }) => {
                writeln!(f, "standby   process {pid}, waits to serve a volume at {address}")
            }
            ServerStatus::Disk(disk) => disk.fmt(f),
        }
    }
}

impl fmt::Display for DiskServed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        line(&mut text, "disk", &format!("{} of volume {}", self.disk, self.volume));
        line(&mut text, "address", &self.address);
        line(&mut text, "served", &format!("by process {}, from {}", self.pid, self.store));
        line(&mut text, "told", &format!("{} times to revoke capabilities", self.revocations));
        write!(f, "{text}{}", self.text)
    }
}

impl fmt::Display for VolumeStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        let mut line = |name: &str, value: &str| line(&mut text, name, value);
        line("volume", &self.volume);
        line("address", &self.address);
        let (pid, engine, owner) = (self.pid, &self.engine, self.owner);
        line("served", &format!("by process {pid} from {engine}, its owner number {owner}"));
        line("setup", &self.setup());
        let trust = self.trust_ms as f64 / 1000.0;
        line("trust", &format!("for {trust} s: so long a disk that is away delays changes"));
        line("keys", &format!("epoch {}, since {}", self.key_epoch, Utc(self.keys_since_s)));
        let (size, free) = (Bytes(self.size_bytes), Bytes(self.free_bytes));
        line("size", &format!("{size}, {free} free"));
        self.tell_memory(&mut line);
        if self.copies > 1 {
            let missing = match self.disks_missing {
                0 => String::new(),
                1 => "; one more disk is needed to use those that are left".to_owned(),
                more => format!("; {more} more disks are needed to use those that are left"),
            };
            line("copies", &format!("{}{missing}", self.copies));
        }
        let waiting = match self.calls_waiting {
            0 => String::new(),
            waiting => format!("; {waiting} calls wait until some are given back"),
        };
        line("clients", &format!("{}, with {} leases{waiting}", self.sessions, self.leases));
        for disk in &self.disks {
            let state = match (disk.state, &disk.problem) {
                (DiskIs::Away, Some(why)) => format!("away: {why}"),
                (DiskIs::Away, None) => "away".to_owned(),
                (_, Some(why)) => format!("up, {} free; {why}", Bytes(disk.free_bytes)),
                (_, None) => format!("up, {} free", Bytes(disk.free_bytes)),
            };
            let memory = if disk.is_memory { "memory, " } else { "" };
            line(&format!("disk {}", disk.disk), &format!("{}: {memory}{state}", disk.address));
            if self.copies > 1 && !disk.is_memory {
                line("", &format!("copy      of set {}: {}", disk.set, disk.copy()));
            }
            if let Some(leaving) = disk.leaving {
                line("", &format!("leaving   {leaving}"));
            }
            if disk.unwanted_revocations > 0 {
                let unwanted = disk.unwanted_revocations;
                line("", &format!("unwanted  {unwanted} capabilities ended for want of numbers"));
            }
            for about in disk.text.iter().flat_map(|text| text.lines()) {
                line("", about);
            }
        }
        f.write_str(&text)
    }
}

impl VolumeStatus {
    /// What is in memory, what leaves it, and what was lost there.
    fn tell_memory(&self, line: &mut impl FnMut(&str, &str)) {
        if self.memory_bytes > 0 {
            let (all, free) = (Bytes(self.memory_bytes), Bytes(self.memory_free_bytes));
            let due = match self.due_files {
                0 => String::new(),
                files => format!("; {files} files go to disks when they are due"),
            };
            line("memory", &format!("{all}, {free} free{due}"));
        }
        if self.yielded_bytes > 0 {
            let why = "their machines lacked memory";
            let to_memory = self.yielded_to_memory_bytes;
            let to_disks = Bytes(self.yielded_bytes.saturating_sub(to_memory));
            let told = match Bytes(to_memory) {
                Bytes(0) => format!("{to_disks} of memory disks went to disks: {why}"),
                others => {
                    format!("{others} went to other memory disks, {to_disks} to disks: {why}")
                }
            };
            line("yielded", &told);
        }
        if self.instead_bytes > 0 {
            let bytes = Bytes(self.instead_bytes);
            let when = if self.is_short_of_memory { "now" } else { "earlier" };
            let why = "no memory disk had room or could be reached";
            line("instead", &format!("{bytes} for memory went to disks, {when}: {why}"));
        }
        if self.is_short_of_room {
            line("late", "bytes are due on other disks, and those have no room for them");
        }
        if let Some(archive) = &self.archive {
            archive.tell(line);
        }
        for LostFile { path, bytes } in &self.lost {
            let path = path.as_deref().unwrap_or("a file without a name");
            line("lost", &format!("{} of {path}", Bytes(*bytes)));
        }
        for loss in &self.losses {
            line("loss", &loss.to_string());
        }
    }

    /// How requests to the disks are protected, and if the volume does not state it, as far as the
    /// disks report it.
    fn setup(&self) -> String {
        if let Some(setup) = &self.setup {
            return setup.clone();
        }
        let of = |disk: &DiskStatus| {
            let setup = disk.status.as_ref()?.get("setup")?.as_str()?;
            Some(setup.to_owned())
        };
        let mut setups: Vec<String> = self.disks.iter().filter_map(of).collect();
        setups.sort_unstable();
        setups.dedup();
        match setups.as_slice() {
            [] => "not known: no disk answers".to_owned(),
            [one] => format!("{one}, as the disks have it: the volume states none"),
            several => format!("differs from disk to disk: {}", several.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(disk: u32, address: &str, state: DiskIs) -> DiskStatus {
        let is_there = state != DiskIs::Away;
        DiskStatus {
            disk,
            address: address.to_owned(),
            state,
            is_memory: false,
            is_there,
            problem: (!is_there).then(|| "connection refused".to_owned()),
            size_bytes: 1 << 30,
            free_bytes: 1 << 29,
            set: 1,
            stale_bytes: if disk == 1 { 0 } else { 1 << 20 },
            resilvered_bytes: 3 << 20,
            resilver_left_s: (state == DiskIs::Resilvering).then_some(2),
            leaving: None,
            unwanted_revocations: 0,
            status: is_there.then(|| serde_json::json!({ "setup": "secure" })),
            text: is_there.then(|| "setup     secure\n".to_owned()),
        }
    }

    fn volume_status(disks: Vec<DiskStatus>) -> VolumeStatus {
        VolumeStatus {
            volume: "a0".into(),
            address: "192.0.2.1:2050".into(),
            engine: "embedded:/srv/meta".into(),
            pid: 7,
            owner: 3,
            size_bytes: 2 << 30,
            free_bytes: 1 << 30,
            memory_bytes: 0,
            memory_free_bytes: 0,
            due_files: 0,
            moved_bytes: 0,
            late_max_ms: 0,
            is_short_of_room: false,
            yielded_bytes: 0,
            yielded_to_memory_bytes: 0,
            instead_bytes: 0,
            is_short_of_memory: false,
            archive: None,
            lost: Vec::new(),
            losses: Vec::new(),
            trust_ms: 30_000,
            key_epoch: 4,
            keys_since_s: 1_795_733_000,
            setup: Some("secure".into()),
            copies: 1,
            disks_missing: 0,
            sessions: 2,
            leases: 40,
            calls_waiting: 0,
            disks,
        }
    }

    #[test]
    fn a_status_reads_well() {
        let other = "192.0.2.3:2051";
        let disks = vec![one(1, "192.0.2.2:2051", DiskIs::Up), one(2, other, DiskIs::Away)];
        let status = volume_status(disks);
        let head = "volume    a0\naddress   192.0.2.1:2050\nserved    by process 7 from embedded:/srv/meta, its owner number 3\n\
                    setup     secure\ntrust     for 30 s: so long a disk that is away delays changes\n\
                    keys      epoch 4, since 2026-11-26 22:43:20 UTC\nsize      2.00 GiB, 1.00 GiB free\n";
        let text = format!(
            "{head}clients   2, with 40 leases\n\
             disk 1    192.0.2.2:2051: up, 512 MiB free\n          setup     secure\n\
             disk 2    192.0.2.3:2051: away: connection refused\n"
        );
        assert_eq!(status.to_string(), text);
        let mut disks = status.disks;
        disks[1] = one(2, "192.0.2.3:2051", DiskIs::Resilvering);
        disks[1].unwanted_revocations = 9;
        let text = format!(
            "{head}copies    2; one more disk is needed to use those that are left\n\
             clients   2, with 40 leases; 1 calls wait until some are given back\n\
             disk 1    192.0.2.2:2051: up, 512 MiB free\n          copy      of set 1: up to date\n          setup     secure\n\
             disk 2    192.0.2.3:2051: up, 512 MiB free\n          \
             copy      of set 1: 1.00 MiB are not up to date: 3.00 MiB were brought, about 2 s are left\n          \
             unwanted  9 capabilities ended for want of numbers\n          setup     secure\n"
        );
        let status =
            VolumeStatus { copies: 2, disks_missing: 1, calls_waiting: 1, disks, ..status };
        assert_eq!(status.to_string(), text);
    }

    /// A volume states its setup, whatever its disks have; one from before volumes had one shows
    /// what its disks have.
    #[test]
    fn a_status_shows_the_setup_of_the_volume() {
        let disk = |number, state| one(number, "192.0.2.2:2051", state);
        let mut status = volume_status(vec![disk(1, DiskIs::Up), disk(2, DiskIs::Away)]);
        let shown = |status: &VolumeStatus| {
            let text = status.to_string();
            text.lines().find_map(|line| line.strip_prefix("setup     ")).unwrap().to_owned()
        };
        status.setup = Some("private".into());
        assert_eq!(shown(&status), "private");
        status.setup = None;
        assert_eq!(shown(&status), "secure, as the disks have it: the volume states none");
        status.disks[1].status = Some(serde_json::json!({ "setup": "off" }));
        assert_eq!(shown(&status), "differs from disk to disk: off, secure");
        status.disks.clear();
        assert_eq!(shown(&status), "not known: no disk answers");
        // A report of a server of an earlier version.
        let mut json = serde_json::to_value(&status).unwrap();
        assert!(json.as_object_mut().unwrap().remove("setup").is_some());
        assert_eq!(serde_json::from_value::<VolumeStatus>(json).unwrap().setup, None);
    }

    #[test]
    fn a_status_with_a_memory_disk_reads_well() {
        let mut status = volume_status(Vec::new());
        status.disks = vec![DiskStatus { is_memory: true, ..one(1, "192.0.2.4:2051", DiskIs::Up) }];
        (status.memory_bytes, status.memory_free_bytes) = (1 << 30, 1 << 29);
        (status.due_files, status.is_short_of_room) = (3, true);
        status.lost = vec![LostFile { path: Some("/a/b".into()), bytes: 8192 }];
        (status.instead_bytes, status.is_short_of_memory) = (4096, true);
        (status.yielded_bytes, status.yielded_to_memory_bytes) = (6144, 4096);
        let text = status.to_string();
        let instead = "\ninstead   4.00 KiB for memory went to disks, now: no memory disk had room";
        let yielded = "\nyielded   4.00 KiB went to other memory disks, 2.00 KiB to disks: their";
        let memory = "\nmemory    1.00 GiB, 512 MiB free; 3 files go to disks when they are due\n";
        let late = "\nlate      bytes are due on other disks, and";
        let disk = "\ndisk 1    192.0.2.4:2051: memory, up, 512 MiB free\n          setup";
        for line in [instead, yielded, memory, late, disk, "\nlost      8.00 KiB of /a/b\n"] {
            assert!(text.contains(line), "{text}");
        }
    }
}
