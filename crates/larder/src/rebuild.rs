//! Lost files are made again: rules are recorded and kept, and run.

mod at_access;
mod at_once;
mod bytes;
mod confined;
mod inside;
mod library;
mod making;
mod paths;
mod process;
mod recorder;
mod scratch;
pub(crate) mod shared;
mod staged;

use larder_rebuild::System;

pub(crate) use at_access::AtAccess;
pub(crate) use at_once::AtOnce;
pub(crate) use confined::{is_meant, run_inside};
pub(crate) use library::Library;
pub(crate) use making::{Maker, Outcome};
pub(crate) use process::remade_as;
pub(crate) use recorder::{Asked, Recorder, input_of, output_of};

/// The system of this machine.
pub(crate) fn here() -> System {
    let name = rustix::system::uname();
    let words = [name.machine(), name.sysname()].map(|word| word.to_string_lossy().into_owned());
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let value = |key: &str| {
        let found = release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        found.unwrap_or_default().trim_matches('"').to_owned()
    };
    let release = [value("ID"), value("VERSION_ID")].join(" ");
    System { machine: words.join(" "), release: release.trim().to_owned() }
}
