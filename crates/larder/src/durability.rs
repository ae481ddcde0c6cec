//! An engine's answers and actions about the durability of files, when a command asks.

use std::path::Path;

use anyhow::{Context, Result, bail};
use larder_cache::FileNo;
use larder_class::Choice;
use larder_client::{Durability, last_path};
use larder_vfs::{Cred, Error};

use crate::classes::shown;
use crate::report::{ClassShown, Durable, Explained, Unsaved};
use crate::stack::Engine;

impl Engine {
    /// The classes of the mount, by name.
    pub(crate) fn classes(&self) -> Vec<ClassShown> {
        shown(self.client.classes())
    }

    /// Which class a file has and why, and how durable it is.
    pub(crate) async fn explain(&self, path: &Path) -> Result<Explained> {
        let ino = self.find(path).await?;
        let Choice { class, why } = self.client.class(ino)?;
        let unsent = self.client.unsent(&|node| node == ino);
        Ok(Explained {
            class: class.name.clone(),
            why: why.to_string(),
            promise: class.promised.to_string(),
            raised: class.raised.clone(),
            durable: self.client.durability(ino)?.into(),
            unsent: unsent.into(),
        })
    }

    /// Sets the class of a file or directory, or takes it back, on behalf of the user whose daemon
    /// this is.
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
            Err(Error::NotPermitted) => {
                bail!("only its owner may weaken a class, and only files and directories have one")
            }
            done => done.context("its class cannot be set"),
        }
    }

    /// The files of which the server has not all: where they are, and when it gets the rest.
    pub(crate) fn unsaved(&self) -> Vec<Unsaved> {
        let path = |file: &larder_client::Unsaved| {
            let path = last_path(&self.cache, FileNo(file.ino.0))?;
            let path = match &file.kept_beside {
                Some((_, name)) => path.with_file_name(name),
                None => path,
            };
            Some(path.to_string_lossy().into_owned())
        };
        let of = |file: larder_client::Unsaved| Unsaved {
            path: path(&file),
            unsent: file.total.into(),
            class: self.client.class(file.ino).map(|choice| choice.class.name.clone()).ok(),
            durable: file.durability.into(),
            problem: file.failure.map(|error| error.to_string()),
            kept_beside: file.kept_beside.map(|(name, _)| name.to_string_lossy().into_owned()),
        };
        self.client.unsaved().into_iter().map(of).collect()
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
