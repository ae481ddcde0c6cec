//! Names: looking up, making, removing, renaming, linking.
//!
//! A change of a directory first checks that it is still the one that was meant, unless that is
//! known ([`super::watching`]). The check and the other requests are sent together where their
//! order does not matter.
//!
//! If the answer to a change was lost with the connection, it is tried again, and what is found
//! then may be the effect of the first attempt:
//! - remove, "not found": the name is gone, which is what was asked for: done.
//! - rename, "not found": done if the target is the file that the source was.
//! - link, "exists": done if the name leads to the file.
//! - making a directory or an exclusive file, "exists": it may be another client's, and these are
//!   used as locks. The client claims nothing: the caller gets [`Error::Io`].

use super::attr::Info;
use super::channel::Moments;
use super::expected::Event;
use super::files::ServerOpen;
use super::hidden;
use super::link::Link;
use super::share::{self, Opened, Seen, Share};
use super::standing::StandingOpen;
use super::status::Failure;
use super::symlinks;
use super::wire::{self, Opening, PREVIOUS};
use larder_vfs::{
    Access, Attr, Change, Cred, Error, Found, Handle, LookedUp, Made, New, Removal, Result, SetAttr,
};
use smb2::msg::create::CreateDisposition;
use smb2::types::flags::FileAttributes;
use smb2::types::status::NtStatus;
use std::ffi::OsStr;
use std::sync::Arc;

/// What was found, or nothing.
fn or_absent(seen: Result<Seen, Failure>) -> Result<Option<Seen>, Failure> {
    match seen {
        Err(failure) if failure.is_absence() => Ok(None),
        seen => seen.map(Some),
    }
}

/// One end of a rename.
struct End<'a> {
    dir: &'a Handle,
    component: String,
    path: String,
    /// The object at the path.
    seen: Option<Info>,
}

impl Share {
    pub(super) async fn look_up(
        &self,
        link: &Arc<Link>,
        cred: &Cred,
        dir: &Handle,
        name: &OsStr,
    ) -> Result<LookedUp, Failure> {
        self.shape.may_in_directory(cred, Access::LOOKUP)?;
        if name == "." || name == ".." {
            let handle = match name == "." {
                true => dir.clone(),
                false => self.paths().parent(dir)?,
            };
            let attr = self.directory(link, &handle).await?.attr(&self.shape);
            return Ok(LookedUp { found: Some(Found { handle, attr }), dir: None });
        }
        let (path, component) = self.path_in(dir, name)?;
        let parent = self.look_at_directory(link, dir);
        let (parent, seen) = tokio::join!(parent, self.look(link, path, false));
        let parent = Some(parent?.attr(&self.shape));
        let found = match or_absent(seen) {
            Ok(Some(seen)) => Some(self.found(dir, &component, &seen.info)),
            Ok(None) => None,
            // The directory was removed between the two requests.
            Err(failure) => return Err(self.gone(dir, failure)),
        };
        Ok(LookedUp { found, dir: parent })
    }

    /// Makes an object. `again` says that an earlier attempt may have made it. The size of an
    /// existing file is not set.
    pub(super) async fn make(
        &self,
        link: &Arc<Link>,
        cred: &Cred,
        (dir, name): (&Handle, &OsStr),
        new: &New,
        set: &SetAttr,
        again: bool,
    ) -> Result<Made, Failure> {
        let (disposition, options) = match new {
            New::File => (CreateDisposition::FileOpenIf, wire::NON_DIRECTORY_FILE),
            New::FileExclusive => (CreateDisposition::FileCreate, wire::NON_DIRECTORY_FILE),
            New::Directory => (CreateDisposition::FileCreate, wire::DIRECTORY_FILE),
            New::Symlink(target) => {
                return self.make_symlink(link, cred, (dir, name), target, again).await;
            }
            New::Node(..) => return Err(Failure::Is(Error::NotSupported)),
        };
        self.shape.may_in_directory(cred, Access::EXTEND)?;
        let (path, component) = self.path_in(dir, name)?;
        self.find_directory(link, dir).await?;
        let readonly = *new != New::Directory
            && self.shape.file_mode & 0o222 != 0
            && set.mode.is_some_and(|mode| mode & 0o222 == 0);
        let attributes = if readonly { FileAttributes::READONLY } else { 0 };
        let opening =
            Opening { disposition, options, attributes, ..Opening::existing(path, wire::LOOK) };
        let change = self.change_names(dir, &[(&component, Event::Come)]).await;
        let made = match make(link, new, opening).await {
            Ok(made) => made,
            Err(failure) => {
                change.failed(failure);
                return Err(self.not_made((dir, name), again, failure));
            }
        };
        let created = made.created || *new != New::File;
        if let (true, Some(handle)) = (created, self.handle(&made.info)) {
            // What is known by this handle belongs to a file that is gone.
            self.close_file(&handle).await;
        }
        let found = self.found(dir, &component, &made.info);
        match created {
            true => change.made(self).await,
            false => change.refused(),
        }
        let token = match made.open {
            Some(open) => self.keep_this(&found.handle, open).await,
            None => None,
        };
        Ok(Made { found, dir: Change::default(), created, token })
    }

    /// Makes a symbolic link. `again` says that an earlier attempt may have made it.
    async fn make_symlink(
        &self,
        link: &Arc<Link>,
        cred: &Cred,
        (dir, name): (&Handle, &OsStr),
        target: &OsStr,
        again: bool,
    ) -> Result<Made, Failure> {
        if !self.limits.symlinks {
            return Err(Failure::Is(Error::NotSupported));
        }
        self.shape.may_in_directory(cred, Access::EXTEND)?;
        let (path, component) = self.path_in(dir, name)?;
        self.find_directory(link, dir).await?;
        let change = self.change_names(dir, &[(&component, Event::Come)]).await;
        if let Err(failure) = symlinks::make(link, path.clone(), target).await {
            change.failed(failure);
            return Err(self.not_made((dir, name), again, failure));
        }
        let seen = self.look(link, path, false).await?;
        if let Some(handle) = self.handle(&seen.info) {
            // What is known by this handle belongs to a file that is gone.
            self.close_file(&handle).await;
        }
        change.made(self).await;
        let found = self.found(dir, &component, &seen.info);
        self.symlinks.learn(&found.handle, &found.attr, Some(target.to_owned()));
        Ok(Made { found, dir: Change::default(), created: true, token: None })
    }

    /// The meaning of a failure to make a new object.
    fn not_made(&self, (dir, name): (&Handle, &OsStr), again: bool, failure: Failure) -> Failure {
        match failure {
            Failure::Status(NtStatus::OBJECT_NAME_COLLISION) if again => {
                tracing::warn!(
                    ?name,
                    "whether it was made before the connection was lost is unknown"
                );
                Failure::Is(Error::Io)
            }
            failure => self.gone_in(dir, failure),
        }
    }

    /// The meaning of a failed change of a name whose path does not exist.
    fn gone_in(&self, dir: &Handle, failure: Failure) -> Failure {
        match failure.is_pathless() && failure != Failure::Status(NtStatus::NOT_A_DIRECTORY) {
            true => self.gone(dir, failure),
            false => failure,
        }
    }

    /// Removes a name. `again` says that an earlier try may have done it.
    pub(super) async fn remove(
        self: &Arc<Share>,
        link: &Arc<Link>,
        cred: &Cred,
        (dir, name): (&Handle, &OsStr),
        what: Removal,
        again: bool,
    ) -> Result<Change, Failure> {
        self.shape.may_in_directory(cred, Access::DELETE)?;
        let (path, component) = self.path_in(dir, name)?;
        let parent = self.find_directory(link, dir);
        let (parent, seen) = tokio::join!(parent, self.look(link, path.clone(), false));
        parent?;
        let Some(seen) = or_absent(seen)? else {
            return if again { Ok(Change::default()) } else { Err(Failure::Is(Error::NotFound)) };
        };
        match (what, seen.info.is_directory()) {
            (Removal::File, true) => return Err(Failure::Is(Error::IsDirectory)),
            (Removal::Directory, false) => return Err(Failure::Is(Error::NotDirectory)),
            _ => (),
        }
        let change = self.change_names(dir, &[(&component, Event::Gone)]).await;
        // Opens of ours would keep the name alive.
        self.close_known(dir, &component, &seen.info).await;
        if seen.info.is_readonly() {
            self.clear_readonly(link, path.clone(), &seen.info).await?;
        }
        let deleted = match seen.info.is_directory() {
            true => hidden::delete_directory(link, path).await,
            false => self.delete_file(link, dir, path, &seen.info).await,
        };
        if deleted.is_ok() {
            self.paths().removed(dir, &component);
        }
        if let Some(file) = self.handle(&seen.info) {
            // By another of its names, if it has one.
            self.keep_on(link, &file).await;
        }
        match deleted {
            Ok(()) => change.made(self).await,
            Err(failure) => {
                change.failed(failure);
                return Err(failure);
            }
        }
        Ok(Change::default())
    }

    /// Renames. `again` says that an earlier try may have done it.
    pub(super) async fn rename(
        &self,
        link: &Arc<Link>,
        cred: &Cred,
        from: (&Handle, &OsStr),
        to: (&Handle, &OsStr),
        again: bool,
    ) -> Result<(), Failure> {
        self.shape.may_in_directory(cred, Access::DELETE | Access::EXTEND)?;
        let known = self.path_in(from.0, from.1).ok();
        let known = known.and_then(|(_, component)| self.paths().child(from.0, &component));
        let (dirs, stay) = ([from.0, to.0], self.stay(&[from.0, to.0]).await);
        let names = (from, to);
        let (from, to) = tokio::join!(self.end(link, from), self.end(link, to));
        let (from, to) = (from?, to?);
        let Some(source) = from.seen else {
            let there = to.seen.and_then(|seen| self.handle(&seen));
            // The recorded path still says which file the source was.
            let done = again && known.is_some() && known == there;
            return if done { Ok(()) } else { Err(Failure::Is(Error::NotFound)) };
        };
        let moved = self.found(from.dir, &from.component, &source).handle;
        if from.path == to.path {
            return Ok(());
        }
        if source.is_directory() && self.paths().is_below(to.dir, &moved) {
            return Err(Failure::Is(Error::InvalidArgument));
        }
        if !source.is_directory() {
            return self.rename_from(link, (source, moved), from, to).await;
        }
        drop(stay);
        let moving = self.begin_move(&moved, dirs).await;
        let is_there = |end: &End<'_>, name| {
            self.path_in(end.dir, name).is_ok_and(|(path, _)| path == end.path)
        };
        if is_there(&from, names.0.1) && is_there(&to, names.1.1) {
            return self.rename_from(link, (source, moved), from, to).await;
        }
        // A directory above was renamed in between.
        drop(moving);
        Box::pin(self.rename(link, cred, names.0, names.1, again)).await
    }

    /// Renames an object that was found at one end, while no directory above the ends is renamed.
    async fn rename_from(
        &self,
        link: &Arc<Link>,
        (source, moved): (Info, Handle),
        from: End<'_>,
        to: End<'_>,
    ) -> Result<(), Failure> {
        if let Some(target) = to.seen.filter(|target| !same_file(target, &source)) {
            self.give_way(link, &source, &target, &to).await?;
        } else if to.seen.is_some() && !is_same_name(&from, &to) {
            // Two names of one file: POSIX has it that nothing happens.
            return Ok(());
        }
        let leaves = self.change_names(from.dir, &[(&from.component, Event::Gone)]).await;
        let arrives = self.change_names(to.dir, &[(&to.component, Event::Come)]).await;
        let (closed, locked) = match source.is_directory() {
            true => self.close_below(link, &moved).await,
            false => {
                self.close_file(&moved).await;
                (self.standing.all(|file| *file == moved), Vec::new())
            }
        };
        let options = wire::OPEN_REPARSE_POINT;
        let opening = Opening { options, ..Opening::existing(from.path.clone(), wire::DELETE) };
        let target = wire::target(&to.path, true);
        let rename = || wire::set(PREVIOUS, wire::RENAME_INFORMATION, target.clone());
        let mut moments = Moments::new(&self.options.clock);
        let renamed = loop {
            let renamed = share::act(link, &opening, vec![rename()]).await;
            // Another client may be about to close the last file below a directory: a kernel waits
            // for no release.
            let is_denied = renamed == Err(Failure::Status(NtStatus::ACCESS_DENIED));
            if !is_denied || !source.is_directory() || !moments.wait().await {
                break renamed;
            }
        };
        if renamed.is_ok() {
            let mut paths = self.paths();
            paths.removed(from.dir, &from.component);
            paths.learn(to.dir, &to.component, &moved);
        }
        self.renew_locks(link, locked).await;
        for standing in closed {
            self.try_renew(link, &standing).await;
        }
        if let Some(replaced) = to.seen.and_then(|target| self.handle(&target)) {
            self.keep_on(link, &replaced).await;
        }
        if renamed == Err(Failure::Status(NtStatus::ACCESS_DENIED)) {
            tracing::debug!("a rename was denied; something may have a file open");
        }
        renamed?;
        leaves.made(self).await;
        arrives.made(self).await;
        Ok(())
    }

    /// Looks at one end of a rename.
    async fn end<'a>(
        &self,
        link: &Arc<Link>,
        (dir, name): (&'a Handle, &OsStr),
    ) -> Result<End<'a>, Failure> {
        let (path, component) = self.path_in(dir, name)?;
        let parent = self.find_directory(link, dir);
        let (parent, seen) = tokio::join!(parent, self.look(link, path.clone(), false));
        parent?;
        let seen = or_absent(seen)?.map(|seen| seen.info);
        Ok(End { dir, component, path, seen })
    }

    /// Removes the target of a rename where the server does not do that: empty directories, and
    /// read-only files.
    async fn give_way(
        &self,
        link: &Arc<Link>,
        source: &Info,
        target: &Info,
        to: &End<'_>,
    ) -> Result<(), Failure> {
        match (source.is_directory(), target.is_directory()) {
            (false, true) => return Err(Failure::Is(Error::IsDirectory)),
            (true, false) => return Err(Failure::Is(Error::NotDirectory)),
            _ => (),
        }
        self.close_known(to.dir, &to.component, target).await;
        if target.is_directory() {
            self.give_up(to.dir).await;
            self.drain(link).await;
            hidden::delete_directory(link, to.path.clone()).await?;
        } else if target.is_readonly() {
            self.clear_readonly(link, to.path.clone(), target).await?;
        }
        self.paths().removed(to.dir, &to.component);
        Ok(())
    }

    /// Closes what we have open of a file, and waits for the closes that other tasks have begun: no
    /// caller waits for those, so they may be sent later than what follows here.
    async fn close_known(&self, dir: &Handle, component: &str, info: &Info) {
        let by_name = self.paths().child(dir, component);
        for handle in self.handle(info).into_iter().chain(by_name) {
            self.close_file(&handle).await;
            if let Some(link) = self.channel(&handle).link() {
                link.closed().await;
            }
        }
    }

    /// Gives a file another name. `again` says that an earlier attempt may have done it.
    pub(super) async fn link(
        &self,
        link: &Arc<Link>,
        cred: &Cred,
        file: &Handle,
        (dir, name): (&Handle, &OsStr),
        again: bool,
    ) -> Result<(Option<Attr>, Change), Failure> {
        self.shape.may_in_directory(cred, Access::EXTEND)?;
        let (path, component) = self.path_in(dir, name)?;
        let changing = self.files.changing(file);
        let parent = self.find_directory(link, dir);
        let opened = self.open_file(link, file, wire::SET, wire::NON_DIRECTORY_FILE);
        let (parent, opened) = tokio::join!(parent, opened);
        parent?;
        let opened = opened?;
        let change = self.change_names(dir, &[(&component, Event::Come)]).await;
        let target = wire::target(&path, false);
        let done = link.ask(wire::set(opened.open.id, wire::LINK_INFORMATION, target)).await?;
        let info = opened.open.finish(Vec::new()).await?;
        match done.check() {
            Err(Failure::Status(NtStatus::OBJECT_NAME_COLLISION)) if again => {
                let seen = self.look(link, path, false).await?;
                if self.handle(&seen.info).as_ref() != Some(file) {
                    return Err(Failure::Status(NtStatus::OBJECT_NAME_COLLISION));
                }
            }
            Err(failure) => {
                change.failed(failure);
                return Err(failure);
            }
            Ok(()) => change.made(self).await,
        }
        let found = self.found(dir, &component, &info);
        changing.done(Some(info));
        Ok((Some(found.attr), Change::default()))
    }

    /// Closes what is open of a file that is about to be removed; its lease ends.
    async fn close_file(&self, file: &Handle) {
        if let Some(entry) = self.files.leave(file) {
            entry.opens.lock().await.close().await;
        }
        self.standing.close(file).await;
    }

    /// Closes what is open in and below a directory: servers rename no directory that contains open
    /// files. Returns what is to be kept open, for [`Share::try_renew`], and what is locked, for
    /// [`Share::renew_locks`].
    async fn close_below(
        &self,
        link: &Link,
        dir: &Handle,
    ) -> (Vec<Arc<StandingOpen>>, Vec<Handle>) {
        let (below, standing, locked) = {
            let paths = self.paths();
            let is_below = |file: &Handle| paths.is_below(file, dir);
            (self.files.leave_all(is_below), self.standing.all(is_below), self.locks.all(is_below))
        };
        for file in &locked {
            self.close_locked(file).await;
        }
        for entry in below {
            entry.opens.lock().await.close().await;
        }
        for standing in &standing {
            standing.close().await;
        }
        self.drain(link).await;
        (standing, locked)
    }
}

fn same_file(one: &Info, other: &Info) -> bool {
    one.identity() == other.identity()
}

/// Whether both ends are one name, in a directory that ignores case.
fn is_same_name(from: &End<'_>, to: &End<'_>) -> bool {
    from.dir == to.dir && from.component.to_lowercase() == to.component.to_lowercase()
}

/// An object that was made, or existed.
struct MadeAt {
    info: Info,
    created: bool,
    /// Of a file.
    open: Option<ServerOpen>,
}

/// Makes a directory, or makes a file and keeps it open: with the right to read it, or at least to
/// read its attributes.
async fn make(link: &Arc<Link>, new: &New, opening: Opening) -> Result<MadeAt, Failure> {
    if *new == New::Directory {
        let info = share::look(link, opening).await?.info;
        return Ok(MadeAt { info, created: true, open: None });
    }
    let reading = Opening { access: wire::READ, ..opening.clone() };
    let opened = match share::open(link, reading).await {
        Err(Failure::Status(NtStatus::ACCESS_DENIED | NtStatus::SHARING_VIOLATION)) => {
            share::open(link, opening).await?
        }
        opened => opened?,
    };
    let Opened { open, info, created, .. } = opened;
    Ok(MadeAt { info, created, open: Some(open) })
}
