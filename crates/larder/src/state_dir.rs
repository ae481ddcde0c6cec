//! The directory for this user's state that must survive a reboot and belongs to no cache: the key
//! with which exports seal their file handles.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use larder_remote::local::HandleKey;

use crate::error::Usage;
use crate::runtime_dir::make_private;

/// Overrides the directory; for tests and containers.
const VARIABLE: &str = "LARDER_STATE_DIR";

/// The key of this user's exports, made when it is first needed. The directory is `/var/lib/larder`
/// for root, else `$XDG_STATE_HOME/larder`, else `~/.local/state/larder`.
///
/// # Errors
/// If it cannot be kept, or if others could tamper with it: then handles would not survive the
/// export.
pub(crate) fn handle_key() -> Result<HandleKey> {
    let dir = find()?;
    make_private(&dir, "state directory")?;
    let path = dir.join("export.key");
    HandleKey::kept_in(&path).with_context(|| {
        format!("cannot keep the key of file handles in {} ({VARIABLE} moves it)", path.display())
    })
}

fn find() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(VARIABLE) {
        return Ok(path.into());
    }
    if rustix::process::geteuid().is_root() {
        return Ok("/var/lib/larder".into());
    }
    match (std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME")) {
        (Some(state), _) => Ok(PathBuf::from(state).join("larder")),
        (None, Some(home)) => Ok(PathBuf::from(home).join(".local/state/larder")),
        (None, None) => bail!(Usage(format!("say where state is to be kept: {VARIABLE}=DIR"))),
    }
}
