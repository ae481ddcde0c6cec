//! Looks names up, checks rights on the objects, and describes them.

use std::ffi::OsStr;

use larder_vfs::{Access, Attr, Cred, Error, Found, Handle, Judged, Kind, LookedUp, Result};

use crate::object::{Dir, ObjectNo, has_rights};
use crate::shared::{Shared, Target};

impl Shared {
    /// Attributes of a file.
    pub(crate) async fn describe(&self, cred: &Cred, file: &Handle) -> Result<Attr> {
        match self.target(file)? {
            Target::Waiting(no) => self.state().attr(no).ok_or(Error::Stale),
            Target::Server(server) => loop {
                self.know_version(&server, cred.deadline).await?;
                let before = self.setting_of(&server);
                let attr = self.remote.getattr(cred, &server).await?;
                if before != self.setting_of(&server) {
                    // It may be from before that.
                    continue;
                }
                // The server may already have set what this client asked for: only its answer
                // tells whether these are that, or attributes that another client set.
                match self.asked_meanwhile(file, &attr) {
                    Some(no) => self.replay_one(no, cred.deadline).await?,
                    None => return Ok(self.show(file, attr)),
                }
            },
        }
    }

    pub(crate) async fn look_up(
        &self,
        cred: &Cred,
        dir: &Handle,
        name: &OsStr,
    ) -> Result<LookedUp> {
        let target = self.target(dir)?;
        if name == ".." {
            return self.look_up_parent(cred, dir, target).await;
        }
        let (mut moved, dir_attr);
        moved = None;
        {
            let state = self.state();
            let key = state.journal().dir(dir);
            let attr = state.dir_attr(&key);
            let waits = matches!(target, Target::Waiting(_));
            if waits && attr.is_none_or(|attr| attr.kind != Kind::Directory) {
                return Err(Error::NotDirectory);
            }
            if waits && !attr.is_some_and(|attr| has_rights(&attr, cred, 1)) {
                return Err(Error::AccessDenied);
            }
            if let Some(no) = state.journal().waiting_at(&key, name) {
                return Ok(LookedUp { found: state.found(no), dir: attr });
            }
            let links = state.journal().links();
            if let Some(linked) = links.at(&key, name).and_then(|no| links.get(no)) {
                if let Dir::Made(no) = linked.file
                    && let Some(found) = state.found(no)
                {
                    return Ok(LookedUp { found: Some(found), dir: attr });
                }
                moved = state.journal().handle_at_server(&linked.file);
            }
            match state.journal().taken().at(&key, name) {
                _ if moved.is_some() => {}
                Some(no) => moved = state.journal().taken().get(no).map(|one| one.handle.clone()),
                None if state.has(&key, name) == Some(false) => {
                    return Ok(LookedUp { found: None, dir: attr });
                }
                None => {}
            }
            dir_attr = attr;
        }
        if let Some(handle) = moved {
            if let Some(held) = self.held() {
                let handle = self.known_as(&handle);
                let attr = held.held(&handle).ok_or(Error::TimedOut)?;
                return Ok(LookedUp { found: Some(Found { handle, attr }), dir: dir_attr });
            }
            self.know_version(&handle, cred.deadline).await?;
            let attr = self.remote.getattr(cred, &handle).await?;
            let found = Some(self.show_found(Found { handle, attr }));
            return Ok(LookedUp { found, dir: dir_attr });
        }
        let Target::Server(server) = target else { return Err(Error::Stale) };
        if self.is_own_name(name) {
            return Ok(LookedUp { found: None, dir: dir_attr });
        }
        let answer = self.remote.lookup(cred, &server, name).await?;
        if let Some(found) = &answer.found {
            self.know_version(&found.handle, cred.deadline).await?;
        }
        Ok(LookedUp {
            found: answer.found.map(|found| self.show_found(found)),
            dir: answer.dir.map(|attr| self.show(dir, attr)),
        })
    }

    async fn look_up_parent(&self, cred: &Cred, dir: &Handle, target: Target) -> Result<LookedUp> {
        let no = match target {
            Target::Server(server) => {
                let answer = self.remote.lookup(cred, &server, OsStr::new("..")).await?;
                return Ok(LookedUp {
                    found: answer.found.map(|found| self.show_found(found)),
                    dir: answer.dir.map(|attr| self.show(dir, attr)),
                });
            }
            Target::Waiting(no) => no,
        };
        let parent = {
            let state = self.state();
            let (dentry, _) = state.journal().waiting(no).ok_or(Error::Stale)?;
            match &dentry.dir {
                Dir::Server(handle) => handle.clone(),
                Dir::Made(above) => state.journal().handle(*above),
            }
        };
        let attr = self.describe(cred, &parent).await?;
        Ok(LookedUp { found: Some(Found { handle: parent, attr }), dir: None })
    }

    pub(crate) fn judge(&self, cred: &Cred, no: ObjectNo, wanted: Access) -> Result<Judged> {
        let attr = self.state().attr(no).ok_or(Error::Stale)?;
        let is_directory = attr.kind == Kind::Directory;
        let rights = [
            (4, Access::READ),
            (2, Access::MODIFY | Access::EXTEND),
            (2, if is_directory { Access::DELETE } else { Access::NONE }),
            (1, if is_directory { Access::LOOKUP } else { Access::EXECUTE }),
        ];
        let may = |bits, right| match right {
            // User 0 too can execute a file only if some user can.
            Access::EXECUTE if cred.uid == 0 => attr.mode & 0o111 != 0,
            _ => has_rights(&attr, cred, bits),
        };
        let granted = rights.into_iter().filter(|(bits, right)| may(*bits, *right));
        let granted = granted.fold(Access::NONE, |all, (_, right)| all | right);
        Ok(Judged::new(granted & wanted, Some(attr)))
    }
}
