//! What a mount's daemon asks its own client about a file, without the kernel.

use std::ffi::OsStr;
use std::path::{Component, Path};

use larder_client::Client;
use larder_vfs::{Cred, Error, FileSystem, Ino, Lookup};

/// The extended attribute (without `user.`) of a file whose bytes are lost.
pub(super) const LOST: &str = "larder.lost";

/// The one of a file that a rule makes.
pub(super) const RULE: &str = "larder.rule";

/// Whether there is a file at a path below the root, with this attribute.
///
/// # Errors
/// If the server does not tell.
pub(super) async fn has(client: &Client, path: &Path, attribute: &str) -> Result<bool, Error> {
    let (root, mut ino) = (Cred::root(), Ino::ROOT);
    for part in path.components() {
        let Component::Normal(name) = part else { return Ok(false) };
        match client.lookup(&root, ino, name).wait().await {
            Ok(Lookup::Found(entry)) => ino = entry.ino,
            Ok(Lookup::Absent { .. }) | Err(Error::NotDirectory) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    match client.xattr(&root, ino, OsStr::new(attribute)).wait().await {
        Ok(value) => Ok(value.is_some()),
        Err(Error::NoAttribute) => Ok(false),
        Err(error) => Err(error),
    }
}
