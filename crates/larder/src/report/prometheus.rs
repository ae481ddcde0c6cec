//! The states of mounts, cached exports and volumes in the text format of Prometheus (0.0.4), for
//! the textfile collector of node_exporter, or anything else that scrapes.

use std::fmt::Write;

use super::{ServerStatus, State, Status, VolumeStatus};

/// A gauge: its name after `larder_`, its description, and its value for a mount; `None`: unknown.
type Gauge = (&'static str, &'static str, fn(&Status) -> Option<u64>);

const GAUGES: [Gauge; 8] = [
    ("up", "Whether the daemon answers.", |status| Some(status.is_up().into())),
    ("server_reachable", "Whether the server answered last time.", |status| {
        status.is_up().then_some(status.server.reachable.into())
    }),
    ("unsaved_files", "Files that the server does not have completely.", |status| {
        status.is_up().then_some(status.dirty.files)
    }),
    ("unsaved_bytes", "Bytes that the server lacks, at most.", |status| {
        status.is_up().then_some(status.dirty.bytes)
    }),
    (
        "oldest_unsaved_seconds",
        "For how long the oldest of these bytes has waited; 0 if there are none.",
        |status| status.is_up().then_some(status.dirty.oldest_s.unwrap_or(0)),
    ),
    ("set_aside_files", "Files with changes that the server refused.", |status| {
        Some(status.cache.as_ref()?.set_aside)
    }),
    (
        "conflicts",
        "What was done here and could not be done so at the server, until a user clears it.",
        |status| status.is_up().then_some(status.count_conflicts()),
    ),
    ("cache_bytes", "Bytes of file data in the cache on disk.", |status| {
        Some(status.cache.as_ref()?.bytes)
    }),
];

/// The same for a volume.
type VolumeGauge = (&'static str, &'static str, fn(&VolumeStatus) -> u64);

const VOLUME_GAUGES: [VolumeGauge; 7] = [
    ("volume_lost_files", "Files with bytes that are lost.", |status| status.lost.len() as u64),
    ("volume_lost_bytes", "Bytes of files that are lost.", |status| {
        status.lost.iter().map(|file| file.bytes).sum()
    }),
    ("volume_losses", "How often bytes were lost, since the volume was made.", |status| {
        status.losses.last().map_or(0, |loss| loss.number)
    }),
    (
        "volume_yielded_bytes",
        "Bytes that left memory disks because their machines lacked memory.",
        |status| status.yielded_bytes,
    ),
    ("volume_archived_bytes", "Bytes of versions in the archive.", |status| {
        status.archive.as_ref().map_or(0, |archive| archive.held_bytes)
    }),
    (
        "volume_archive_due_files",
        "Files whose present version is to be in the archive now or later.",
        |status| status.archive.as_ref().map_or(0, |archive| archive.due_files as u64),
    ),
    ("volume_archive_late_seconds", "For how long the first of them has been due.", |status| {
        status.archive.as_ref().map_or(0, |archive| archive.late_ms / 1000)
    }),
];

/// All gauges of all mounts and volumes.
pub(crate) fn text(all: &[Status], servers: &[ServerStatus]) -> String {
    let mut text = String::new();
    for (name, help, value) in GAUGES {
        let _ = writeln!(text, "# HELP larder_{name} {help}\n# TYPE larder_{name} gauge");
        for status in all {
            let Some(value) = value(status) else { continue };
            // An export has no mountpoint, but an address.
            let place = status.listen.as_deref().unwrap_or(&status.mountpoint);
            let (place, source) = (escaped(place), escaped(&status.source));
            let _ =
                writeln!(text, "larder_{name}{{mount=\"{place}\",source=\"{source}\"}} {value}");
        }
    }
    let volumes: Vec<&VolumeStatus> = servers.iter().filter_map(ServerStatus::volume).collect();
    for (name, help, value) in VOLUME_GAUGES.iter().filter(|_| !volumes.is_empty()) {
        let _ = writeln!(text, "# HELP larder_{name} {help}\n# TYPE larder_{name} gauge");
        for status in &volumes {
            let (server, value) = (escaped(&status.address), value(status));
            let _ = writeln!(text, "larder_{name}{{server=\"{server}\"}} {value}");
        }
    }
    text
}

impl Status {
    fn is_up(&self) -> bool {
        matches!(self.state, State::Mounted | State::Detached)
    }
}

/// A value of a label.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::super::{CacheState, Conflict, Dirty};
    use super::*;

    #[test]
    fn gauges_have_a_line_for_each_mount_that_knows_them() {
        let dirty = Dirty { files: 2, bytes: 5, bytes_is_bound: false, oldest_s: Some(31) };
        let up = Status {
            mountpoint: "/a \"b\"\\\n".into(),
            source: "nfs://server/x".into(),
            state: State::Mounted,
            dirty,
            conflicts: vec![Conflict::default()],
            cache: Some(CacheState { set_aside: 1, ..CacheState::default() }),
            ..Status::default()
        };
        let dead = Status { mountpoint: "/dead".into(), ..Status::default() };
        let told = text(&[up, dead], &[]);
        let labels = r#"{mount="/a \"b\"\\\n",source="nfs://server/x"}"#;
        for line in [
            "# TYPE larder_oldest_unsaved_seconds gauge".to_owned(),
            format!("larder_oldest_unsaved_seconds{labels} 31"),
            format!("larder_unsaved_bytes{labels} 5"),
            format!("larder_set_aside_files{labels} 1"),
            format!("larder_conflicts{labels} 1"),
            format!("larder_up{labels} 1"),
            r#"larder_up{mount="/dead",source=""} 0"#.to_owned(),
        ] {
            assert!(told.lines().any(|told| told == line), "{line} in {told}");
        }
        assert!(!told.contains(r#"unsaved_bytes{mount="/dead""#), "nobody knows");
        assert!(told.ends_with('\n') && told.lines().all(|line| !line.is_empty()));
    }
}
