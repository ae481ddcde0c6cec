//! The steps that are about names and directories.

use std::os::unix::fs::MetadataExt;
use std::{fs, io};

use super::super::model::{Id, Path, ROOT, Who};
use super::super::script::{DIRS, FILES};
use super::{Play, Wrong, is, unless};

impl Play {
    pub(super) fn stat(&mut self, who: Who, path: Path) -> Wrong {
        let views = self.model.views(who, path);
        let at = self.at(who, path);
        match self.alone(|| fs::metadata(at)) {
            Ok(seen) => {
                let fits = |id: &Id| self.model.told(who, *id).explain_size(seen.len());
                let mut wrong = views.iter().flatten().map(fits).filter_map(Result::err);
                match (views.iter().flatten().any(|id| fits(id).is_ok()), wrong.next()) {
                    (true, _) => Ok(()),
                    (false, wrong) => Err(format!("files {views:?}: {wrong:?}")),
                }
            }
            Err(error) => unless(is(&error, libc::ENOENT) && views.contains(&None), &error),
        }
    }

    pub(super) fn link(&mut self, who: Who, from: Path, to: Path) -> Wrong {
        if !self.is_clear(who, from) || !self.is_clear(who, to) {
            return Ok(());
        }
        let views = [from, to].map(|path| self.model.views(who, path));
        let may_lack = views[0].contains(&None) || self.may_lack_parent(who, to);
        let at = [from, to].map(|path| self.at(who, path));
        match self.alone(|| fs::hard_link(&at[0], &at[1])) {
            Ok(()) if self.model.truth(to).is_some() || self.model.parent(to).is_none() => {
                Err("it took the place of a file, or its directory is gone".to_owned())
            }
            Ok(()) => {
                let made = self.at_server(to).symlink_metadata();
                let made = made.map_err(|error| format!("at the server: {error}"))?.ino();
                let id = self.numbers.get(&made).copied().ok_or("it is a new file")?;
                if !views[0].contains(&Some(id)) {
                    return Err(format!("it is file {id}, not of {:?}", views[0]));
                }
                self.model.link(who, id, to);
                Ok(())
            }
            Err(error) => {
                let may_exist = views[1].iter().any(Option::is_some);
                let exists = is(&error, libc::EEXIST) && may_exist;
                unless(exists || is(&error, libc::ENOENT) && may_lack, &error)
            }
        }
    }

    pub(super) fn rename(&mut self, who: Who, from: Path, to: Path) -> Wrong {
        if !self.is_clear(who, from) || !self.is_clear(who, to) || self.is_held_open(who, to) {
            return Ok(());
        }
        let views = [from, to].map(|path| self.model.views(who, path));
        let truth = [from, to].map(|path| self.model.truth(path));
        let may_lack = views[0].contains(&None) || self.may_lack_parent(who, to);
        let at = [from, to].map(|path| self.at(who, path));
        match self.alone(|| fs::rename(&at[0], &at[1])) {
            Ok(()) if truth[0].is_none() || self.model.parent(to).is_none() => {
                let same = views[0].iter().any(|id| id.is_some() && views[1].contains(id));
                if same { Ok(()) } else { Err("there was nothing to rename".to_owned()) }
            }
            Ok(()) if self.at_server(from).symlink_metadata().is_ok() => {
                // Two names of one file: nothing is done.
                let same = views[0].iter().any(|id| id.is_some() && views[1].contains(id));
                if same { Ok(()) } else { Err("the old name is still there".to_owned()) }
            }
            Ok(()) if truth[0] == truth[1] => Err("a name of the same file has gone".to_owned()),
            Ok(()) => {
                self.model.rename(who, from, to);
                Ok(())
            }
            Err(error) => {
                let hinders = self.hinders(&error, who, &[truth[0], truth[1]]);
                unless(hinders || is(&error, libc::ENOENT) && may_lack, &error)
            }
        }
    }

    /// Whether an open file of the other client prevents it.
    fn hinders(&self, error: &io::Error, who: Who, ids: &[Option<Id>]) -> bool {
        let is_open = |id: &Id| self.model.is_open(*id, Some(1 - who));
        let refused = [libc::EACCES, libc::EBUSY, libc::ETXTBSY, libc::EPERM];
        let is_refused = refused.iter().any(|errno| is(error, *errno));
        self.kind.opens_hinder && is_refused && ids.iter().flatten().any(is_open)
    }

    /// A name of a share stays while the other client has the file open: that is not tested.
    fn is_held_open(&self, who: Who, path: Path) -> bool {
        let is_open = |id| self.model.is_open(id, Some(1 - who));
        self.kind.opens_hinder && self.model.truth(path).is_some_and(is_open)
    }

    pub(super) fn unlink(&mut self, who: Who, path: Path) -> Wrong {
        if !self.is_clear(who, path) || self.is_held_open(who, path) {
            return Ok(());
        }
        let (views, truth) = (self.model.views(who, path), self.model.truth(path));
        let at = self.at(who, path);
        match self.alone(|| fs::remove_file(at)) {
            Ok(()) if truth.is_none() => Err("there was nothing to remove".to_owned()),
            Ok(()) => {
                self.model.remove(who, path);
                let gone = self.at_server(path).symlink_metadata().is_err();
                if gone { Ok(()) } else { Err("it is still at the server".to_owned()) }
            }
            Err(error) => {
                let lacks = is(&error, libc::ENOENT) && views.contains(&None);
                unless(lacks || self.hinders(&error, who, &[truth]), &error)
            }
        }
    }

    pub(super) fn mkdir(&mut self, who: Who, dir: &'static str) -> Wrong {
        let path = Path { dir: None, name: dir };
        if !self.is_clear(who, path) {
            return Ok(());
        }
        let (views, truth) = (self.model.views(who, path), self.model.truth(path));
        let at = self.at(who, path);
        match self.alone(|| fs::create_dir(at)) {
            Ok(()) if truth.is_some() => Err("it was there".to_owned()),
            Ok(()) => {
                self.model.make(who, path);
                Ok(())
            }
            Err(error) => {
                let may_exist = views.iter().any(Option::is_some);
                unless(is(&error, libc::EEXIST) && may_exist, &error)
            }
        }
    }

    pub(super) fn rmdir(&mut self, who: Who, dir: &'static str) -> Wrong {
        let path = Path { dir: None, name: dir };
        if !self.is_clear(who, path) {
            return Ok(());
        }
        let (views, truth) = (self.model.views(who, path), self.model.truth(path));
        let full = truth.is_some_and(|dir| !self.model.listing(dir).is_empty());
        // A hidden name is removed after the last close has returned.
        let hides = self.model.hides();
        let at = self.at(who, path);
        match self.alone(|| fs::remove_dir(at)) {
            Ok(()) if truth.is_none() || full => Err("it was not there, or not empty".to_owned()),
            Ok(()) => {
                self.model.remove(who, path);
                Ok(())
            }
            Err(error) => {
                let is_full = is(&error, libc::ENOTEMPTY) && (full || hides);
                unless(is_full || is(&error, libc::ENOENT) && views.contains(&None), &error)
            }
        }
    }

    pub(super) fn list(&mut self, who: Who, dir: Option<&'static str>) -> Wrong {
        let views = self.model.directory_views(who, dir);
        let at = self.mounts[who].join(dir.unwrap_or(""));
        let listed = self.alone(|| -> io::Result<Vec<String>> {
            let names = fs::read_dir(at)?.map(|entry| Ok(entry?.file_name()));
            names.map(|name| name.map(|name| name.to_string_lossy().into_owned())).collect()
        });
        match (listed, &views[..]) {
            (Ok(listed), [Some(dir)]) => self.compare_list(who, *dir, &listed),
            (Ok(_), _) => Ok(()),
            (Err(error), views) => {
                let gone = is(&error, libc::ENOENT) || is(&error, libc::ESTALE) && views.len() > 1;
                unless(gone && (views.contains(&None) || views.len() > 1), &error)
            }
        }
    }

    fn compare_list(&self, who: Who, dir: Id, listed: &[String]) -> Wrong {
        let names = FILES.iter().chain(if dir == ROOT { &DIRS[..] } else { &[] });
        for name in names {
            let is_listed = listed.iter().any(|one| one == name);
            let [may_be, may_lack] = self.model.may_be_listed(who, dir, name);
            if is_listed && !may_be || !is_listed && !may_lack {
                return Err(format!("{name} is listed: {is_listed}"));
            }
        }
        let mut sorted = listed.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let twice = sorted.len() != listed.len();
        if twice { Err(format!("listed twice: {listed:?}")) } else { Ok(()) }
    }
}
