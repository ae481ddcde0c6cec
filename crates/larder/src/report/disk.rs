//! A disk's report of itself.

use std::fmt::Write as _;

use larder_wire::disk::words::StatusDone;
use serde_json::{Value, json};

use crate::options::Bytes;

/// For how many milliseconds the disk still trusts what it knows; none if it no longer does.
fn trusted_ms(status: &StatusDone) -> Option<u64> {
    status.trusted_until_ms.checked_sub(status.clock_ms).filter(|left| *left > 0)
}

/// A disk's report of itself, for people.
pub(crate) fn to_text(status: &StatusDone) -> String {
    let mut text = format!("setup     {}\n", status.setup.name());
    let mut line = |name: &str, value: String| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name:<9} {value}");
    };
    line("size", Bytes(status.size).to_string());
    line("written", Bytes(status.written).to_string());
    if status.limit < status.size {
        line("limit", format!("{}: its machine lacks memory", Bytes(status.limit)));
    }
    if status.poisoned {
        line("store", "takes no more changes: a sync failed".to_owned());
    }
    let trusted = match trusted_ms(status) {
        Some(left) => format!("for {:.1} s more", left as f64 / 1000.0),
        None => "no: the metadata server was not heard of in time".to_owned(),
    };
    line("trusted", trusted);
    line("key", status.key.map_or("none yet".to_owned(), |key| key.0.to_string()));
    line("sessions", status.sessions.to_string());
    let revoked: u32 = status.groups.0.iter().map(|group| group.revoked).sum();
    line("groups", format!("{} ({revoked} capabilities revoked)", status.groups.0.len()));
    for counted in &status.refusals.0 {
        line("refused", format!("{} times: {}", counted.count, counted.refusal));
    }
    text
}

/// The same as JSON.
pub(crate) fn to_json(status: &StatusDone) -> Value {
    let groups = status.groups.0.iter();
    let refusals = status.refusals.0.iter();
    json!({
        "setup": status.setup.name(),
        "size_bytes": status.size,
        "written_bytes": status.written,
        "limit_bytes": status.limit,
        "poisoned": status.poisoned,
        "trusted_ms": trusted_ms(status),
        "key_epoch": status.key.map(|key| key.0),
        "sessions": status.sessions,
        "groups": groups.map(|group| json!({
            "group": group.group.0,
            "revoked": group.revoked,
        })).collect::<Vec<_>>(),
        "refused": refusals.map(|counted| json!({
            "reason": format!("{:?}", counted.refusal),
            "count": counted.count,
        })).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use larder_wire::capability::{GroupId, KeyEpoch};
    use larder_wire::disk::words::{GroupStatus, Refusal, RefusalCount};
    use larder_wire::seal::Setup;
    use larder_wire::xdr::Array;

    use super::*;

    #[test]
    fn a_status_reads_well() {
        let status = StatusDone {
            setup: Setup::Secure,
            size: 1 << 30,
            written: 4096,
            limit: 1 << 30,
            clock_ms: 5_000,
            trusted_until_ms: 7_500,
            key: Some(KeyEpoch(4)),
            sessions: 3,
            poisoned: false,
            groups: Array(vec![GroupStatus { group: GroupId(9), revoked: 2 }]),
            refusals: Array(vec![RefusalCount { refusal: Refusal::Replayed, count: 7 }]),
        };
        let text = "setup     secure\nsize      1.00 GiB\nwritten   4.00 KiB\ntrusted   for 2.5 s more\n\
                    key       4\nsessions  3\ngroups    1 (2 capabilities revoked)\n\
                    refused   7 times: the request came before\n";
        assert_eq!(to_text(&status), text);
        let limited = StatusDone { limit: 1 << 20, ..status.clone() };
        let text = to_text(&limited);
        assert!(text.contains("\nlimit     1.00 MiB: its machine lacks memory\n"), "{text}");
        assert_eq!(to_json(&limited)["limit_bytes"], 1 << 20);
        let alone = StatusDone { clock_ms: 7_500, poisoned: true, key: None, ..status };
        let text = to_text(&alone);
        assert!(text.contains("trusted   no: "), "{text}");
        assert!(text.contains("store     takes no more changes"), "{text}");
        assert_eq!(to_json(&alone)["trusted_ms"], Value::Null);
    }
}
