//! Extended attributes. The program's names include their name space; only those of users pass
//! here.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use bytes::Bytes;
use larder_vfs::{Change, Cred, Error, Result, SetXattr, XATTR_PREFIX, XattrOnly};
use larder_wire::meta::calls;
use larder_wire::meta::words::{FileId, Name};

use super::{Native, convert};

impl Native {
    pub(super) async fn xattr_of(
        &self,
        cred: &Cred,
        file: FileId,
        name: &OsStr,
    ) -> Result<Option<Bytes>> {
        let name = sent(name)?;
        let args = |session| calls::GetXattr { session, file, name: name.clone() };
        match self.session.ask(cred, args).await.map_err(Error::from) {
            Ok(got) => Ok(Some(Bytes::copy_from_slice(&got.value))),
            Err(Error::NoAttribute) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn xattrs_of(&self, cred: &Cred, file: FileId) -> Result<Vec<OsString>> {
        let listed = self.session.ask(cred, |session| calls::ListXattr { session, file }).await?;
        let own = |name: &Name| {
            let own = name.strip_prefix(XATTR_PREFIX.as_bytes())?;
            Some(OsString::from_vec(own.to_vec()))
        };
        Ok(listed.names.0.iter().filter_map(own).collect())
    }

    pub(super) async fn change_xattr(
        &self,
        cred: &Cred,
        file: FileId,
        set: SetXattr,
    ) -> Result<Change> {
        set.check_lengths()?;
        let name = sent(&set.name)?;
        self.commit_pending(file).await?;
        let changed = match set.value {
            Some(value) => {
                let value = calls::XattrValue::from(value);
                let if_set = match set.only {
                    None => calls::IfSet::Either,
                    Some(XattrOnly::New) => calls::IfSet::Create,
                    Some(XattrOnly::Existing) => calls::IfSet::Replace,
                };
                let args = |sequence| calls::SetXattr {
                    sequence,
                    file,
                    name: name.clone(),
                    value: value.clone(),
                    if_set,
                };
                self.session.change(cred, args).await
            }
            None => {
                let args = |sequence| calls::RemoveXattr { sequence, file, name: name.clone() };
                self.session.change(cred, args).await
            }
        };
        let changed = self.note_changes(changed, |changed| vec![changed.file])?;
        Ok(convert::change(self.volume, &changed.file))
    }
}

/// A name as it is sent.
fn sent(name: &OsStr) -> Result<Name> {
    convert::name(&[XATTR_PREFIX.as_bytes(), name.as_bytes()].concat())
}
