//! Lists a directory of a mount for the daemon's own purposes.

use std::ffi::OsString;

use larder_client::Client;
use larder_vfs::{Cred, Entry, Error, FileSystem, Ino, Lookup};

/// Bytes of entries asked for at a time.
const LISTING_BYTES: u32 = 256 << 10;

/// Gives each name in a directory to `take`, with what it stands for. Attributes come with the
/// listing where the server sends them.
///
/// # Errors
/// Those of [`FileSystem::opendir`], [`FileSystem::readdir`] and [`FileSystem::lookup`].
pub(crate) async fn each_child(
    client: &Client,
    cred: &Cred,
    dir: Ino,
    take: &mut (dyn FnMut(OsString, Entry) + Send),
) -> Result<(), Error> {
    client.opendir(cred, dir).wait().await?;
    let mut offset = 0;
    loop {
        let listed = client.readdir(cred, dir, offset, LISTING_BYTES, true).wait().await?;
        let Some(last) = listed.last() else { return Ok(()) };
        offset = last.offset;
        for listed in listed {
            let found = match listed.entry {
                Some(entry) => Lookup::Found(entry),
                None => client.lookup(cred, dir, &listed.name).wait().await?,
            };
            if let Lookup::Found(entry) = found {
                take(listed.name, entry);
            }
        }
    }
}
