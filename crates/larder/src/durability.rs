//! An engine's answers and actions about the durability of files, when a command asks.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use larder_cache::FileNo;
use larder_class::{Choice, Level};
use larder_client::{Durability, last_path};
use larder_vfs::{Cred, Error, Ino};

use crate::classes::shown;
use crate::maintenance;
use crate::report::{
    ArchiveKnown, ClassShown, Conflict, Durable, Explained, StoredAt, Unsaved, promised_levels,
};
use crate::stack::Engine;

/// How long a server is waited for that is asked where it has the bytes of a file: it may be away.
const PATIENCE: Duration = Duration::from_secs(10);

impl Engine {
    /// The classes of the mount, by name.
    pub(crate) fn classes(&self) -> Vec<ClassShown> {
        shown(self.client.classes())
    }

    /// Which class a file has and why, how durable it is, and what would lose it.
    pub(crate) async fn explain(&self, path: &Path) -> Result<Explained> {
        let ino = self.find(path).await?;
        let Choice { class, why } = self.client.class(ino)?;
        let unsent = self.client.unsent(&|node| node == ino);
        let durability = self.client.durability(ino)?;
        let explained = Explained {
            class: class.name.clone(),
            why: why.to_string(),
            promise: class.promised.to_string(),
            raised: class.raised.clone(),
            durable: durability.into(),
            unsent: unsent.into(),
            levels: promised_levels(&class, self.client.classes().lifetimes()),
            ..Explained::default()
        };
        let unsent_bytes = explained.unsent.bytes;
        match self.stored(ino, durability.reached, unsent_bytes).await {
            Ok(places) => {
                let archived = self.client.in_archive(&Cred::root(), ino, PATIENCE).await;
                let archive = archived.unwrap_or_else(|error| {
                    tracing::debug!("whether the archive has it is not known: {error}");
                    None
                });
                Ok(explained.with_stored(
                    places,
                    archive.map(ArchiveKnown::of),
                    self.client.classes().lifetimes(),
                ))
            }
            Err(error) => Ok(Explained { places_unknown: Some(error.to_string()), ..explained }),
        }
    }

    /// Where the bytes of a file are: `unsent` of them at level `reached`, which is the server's
    /// if there are none, the others where the server tells.
    async fn stored(&self, ino: Ino, reached: Level, unsent: u64) -> Result<Vec<StoredAt>, Error> {
        let lifetimes = self.client.classes().lifetimes();
        let Some(size) = self.client.size(ino)? else { return Ok(Vec::new()) };
        // A file without a name at the server has nothing there.
        let (here, at_server) = match reached < Level::Shared {
            true if unsent == 0 => (size, Ok(Vec::new())),
            true => (unsent, self.client.stored(&Cred::root(), ino, PATIENCE).await),
            false => (0, self.client.stored(&Cred::root(), ino, PATIENCE).await),
        };
        let here = StoredAt::new(reached, here, 1, lifetimes);
        let at_server = match at_server {
            // How often such a server keeps them is its own affair.
            Err(Error::NotSupported) => {
                let bytes = size.saturating_sub(here.bytes);
                vec![StoredAt::new(Level::Durable, bytes, 1, lifetimes)]
            }
            parts => parts?.into_iter().map(|part| StoredAt::of_part(part, lifetimes)).collect(),
        };
        let all = std::iter::once(here).chain(at_server);
        Ok(all.filter(|place| place.bytes > 0).collect())
    }

    /// Sets the class of a file or directory, or removes it, on behalf of the user who runs the
    /// daemon.
    pub(crate) async fn set_class(&self, path: &Path, class: Option<&str>) -> Result<()> {
        let ino = self.find(path).await?;
        if let Some(name) = class {
            self.client.classes().get(name).map_err(anyhow::Error::msg)?;
        }
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let me = Cred::new(uid.as_raw(), gid.as_raw(), &[]);
        match self.client.set_class(&me, ino, class).await {
            Err(Error::Busy) => bail!(
                "somebody has it open, and the kernel writes it by itself: close it, then try again"
            ),
            Err(Error::NotSupported) => bail!(
                "the volume has no level archive: its metadata server was started without --archive"
            ),
            Err(Error::NotPermitted) => {
                bail!("only its owner may weaken a class, and only files and directories have one")
            }
            done => done.context("its class cannot be set"),
        }
    }

    /// The conflicts on record above a number; at most `count_max`.
    pub(crate) fn conflicts(&self, above: u64, count_max: usize) -> Vec<Conflict> {
        let all = maintenance::conflicts(&self.cache, above, count_max).into_iter();
        let dir = self.cache_dir.as_deref().unwrap_or(Path::new(""));
        let at = |file: String| dir.join(file).to_string_lossy().into_owned();
        all.map(|one| Conflict { set_aside: one.set_aside.map(at), ..one }).collect()
    }

    /// The files that the server does not have completely: where they are, and when it gets the
    /// rest; then those whose changes were set aside.
    pub(crate) fn unsaved(&self) -> Vec<Unsaved> {
        let path = |file: &larder_client::Unsaved| {
            let path = last_path(&self.cache, FileNo(file.ino.0))?;
            Some(path.to_string_lossy().into_owned())
        };
        let of = |file: larder_client::Unsaved| Unsaved {
            path: path(&file),
            unsent: file.total.into(),
            class: self.client.class(file.ino).map(|choice| choice.class.name.clone()).ok(),
            durable: file.durability.into(),
            problem: file.failure.map(|error| error.to_string()),
            set_aside: None,
        };
        let dir = self.cache_dir.as_deref().unwrap_or(Path::new(""));
        let aside = self.cache.set_aside().into_iter().map(|file| Unsaved {
            set_aside: Some(dir.join(file).to_string_lossy().into_owned()),
            ..Unsaved::default()
        });
        self.client.unsaved().into_iter().map(of).chain(aside).collect()
    }
}

impl From<Durability> for Durable {
    fn from(durability: Durability) -> Durable {
        Durable {
            level: durability.reached.name().to_owned(),
            promised: durability.promised.map(|level| level.name().to_owned()),
            due: durability.due.map(|due| due.to_string()),
        }
    }
}
