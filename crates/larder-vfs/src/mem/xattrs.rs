//! Extended attributes of the model: users who may read the file may read them, users who may write
//! it may change them.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use bytes::Bytes;

use crate::{Change, Cred, Handle, Result, SetXattr};

use super::node::{READ, WRITE};
use super::server::Server;

/// Those of a file.
#[derive(Clone, Default)]
pub(super) struct Xattrs(BTreeMap<OsString, Bytes>);

impl Xattrs {
    fn set(&mut self, set: SetXattr) -> Result<()> {
        set.check_lengths()?;
        set.judge(self.0.get(&set.name))?;
        match set.value {
            Some(value) => drop(self.0.insert(set.name, value)),
            None => drop(self.0.remove(&set.name)),
        }
        Ok(())
    }
}

impl Server {
    pub(super) fn xattr(&self, cred: &Cred, file: &Handle, name: &OsStr) -> Result<Option<Bytes>> {
        let number = self.resolve(file)?;
        self.node(number).need(cred, READ)?;
        Ok(self.xattrs_of(number).and_then(|all| all.0.get(name).cloned()))
    }

    pub(super) fn xattrs(&self, cred: &Cred, file: &Handle) -> Result<Vec<OsString>> {
        let number = self.resolve(file)?;
        self.node(number).need(cred, READ)?;
        Ok(self.xattrs_of(number).map_or_else(Vec::new, |all| all.0.keys().cloned().collect()))
    }

    pub(super) fn set_xattr(
        &mut self,
        cred: &Cred,
        file: &Handle,
        set: SetXattr,
    ) -> Result<Change> {
        let number = self.resolve(file)?;
        let before = self.node(number).before();
        self.node(number).need(cred, WRITE)?;
        self.xattrs_mut(number).set(set)?;
        let now = self.tick();
        self.node_mut(number).touched(now, false);
        Ok(self.change(number, before))
    }
}
