//! MOUNT version 3 (RFC 1813, 5.0): the first file handle.
//!
//! A path is either below [`Config::export_path`] or, as many clients write it, below `/` taken for
//! the export's root. It is walked with the caller's rights and leads over directories only. The
//! list of mounts is only what clients have reported; it is bounded and lost with the server.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use larder_vfs::{Cred, Error, FileSystem, Ino, Kind, Lookup};
use larder_wire::mount3::{
    MNTargs, UMNTargs, dirpath, exportnode, mountbody, mountres3, mountres3_ok, mountstat3, name,
};
use larder_wire::nfs3::FHSIZE;
use larder_wire::xdr::{Array, List};

use crate::Config;

/// Most mounts that are remembered; beyond that the oldest are forgotten.
const MOUNTS_MAX: usize = 1024;
/// AUTH_SYS (RFC 5531, 8.2).
const AUTH_SYS: u32 = 1;
/// AUTH_NONE (RFC 5531, 8.2).
const AUTH_NONE: u32 = 0;

/// The MOUNT program.
pub(crate) struct Mount {
    fs: Arc<dyn FileSystem>,
    export_path: String,
    networks: Vec<String>,
    mounts: Mutex<VecDeque<(IpAddr, Bytes)>>,
}

impl Mount {
    pub(crate) fn new(fs: Arc<dyn FileSystem>, config: &Config) -> Mount {
        Mount {
            fs,
            export_path: config.export_path.clone(),
            networks: config.rpc.allow.iter().map(ToString::to_string).collect(),
            mounts: Mutex::default(),
        }
    }

    pub(crate) async fn mnt(&self, cred: &Cred, from: IpAddr, args: MNTargs) -> mountres3 {
        let path = args.dirpath.0;
        let answer = self.walk(cred, self.below_export(&path)).await.map_err(status)?;
        let mut mounts = self.mounts();
        mounts.retain(|mount| *mount != (from, path.clone()));
        if mounts.len() == MOUNTS_MAX {
            mounts.pop_front();
        }
        // Copied: the path is a slice of the whole message, which it would keep in memory.
        mounts.push_back((from, Bytes::copy_from_slice(&path)));
        Ok(answer)
    }

    pub(crate) fn umnt(&self, from: IpAddr, args: &UMNTargs) {
        self.mounts().retain(|(address, path)| *address != from || *path != args.dirpath.0);
    }

    pub(crate) fn umnt_all(&self, from: IpAddr) {
        self.mounts().retain(|(address, _)| *address != from);
    }

    pub(crate) fn dump(&self) -> List<mountbody> {
        let of = |(address, path): &(IpAddr, Bytes)| mountbody {
            ml_hostname: name::copy_from_slice(address.to_string().as_bytes()),
            ml_directory: dirpath::from(path.clone()),
        };
        List(self.mounts().iter().map(of).collect())
    }

    pub(crate) fn exports(&self) -> List<exportnode> {
        let groups = self.networks.iter().map(|text| name::copy_from_slice(text.as_bytes()));
        List(vec![exportnode {
            ex_dir: dirpath::copy_from_slice(self.export_path.as_bytes()),
            ex_groups: List(groups.collect()),
        }])
    }

    fn mounts(&self) -> MutexGuard<'_, VecDeque<(IpAddr, Bytes)>> {
        self.mounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The part of a path below the export's root.
    fn below_export<'a>(&self, path: &'a [u8]) -> &'a [u8] {
        let export = self.export_path.trim_end_matches('/').as_bytes();
        match path.strip_prefix(export) {
            Some(rest) if rest.is_empty() || rest.starts_with(b"/") => rest,
            _ => path,
        }
    }

    async fn walk(&self, cred: &Cred, path: &[u8]) -> Result<mountres3_ok, Error> {
        let mut at = Ino::ROOT;
        for component in path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
            if component == b"." {
                continue;
            }
            let component = OsStr::from_bytes(component);
            if component == ".." || component.as_bytes().contains(&0) {
                return Err(Error::InvalidArgument);
            }
            let found = self.fs.lookup(cred, at, component).wait().await;
            self.give_back(at);
            match found? {
                Lookup::Absent { .. } => return Err(Error::NotFound),
                Lookup::Found(entry) if entry.fresh.attr.kind != Kind::Directory => {
                    self.give_back(entry.ino);
                    return Err(Error::NotDirectory);
                }
                Lookup::Found(entry) => at = entry.ino,
            }
        }
        let handle = self.fs.handle(at).wait().await;
        self.give_back(at);
        let handle = handle?;
        if handle.as_bytes().len() > FHSIZE {
            return Err(Error::NotSupported);
        }
        Ok(mountres3_ok {
            fhandle: Bytes::copy_from_slice(handle.as_bytes()).into(),
            auth_flavors: Array(vec![AUTH_SYS, AUTH_NONE]),
        })
    }

    /// Drops the reference that a lookup took. The root has none.
    fn give_back(&self, ino: Ino) {
        if ino != Ino::ROOT {
            self.fs.forget(ino, 1);
        }
    }
}

fn status(error: Error) -> mountstat3 {
    match error {
        Error::NotFound => mountstat3::MNT3ERR_NOENT,
        Error::NotPermitted => mountstat3::MNT3ERR_PERM,
        Error::AccessDenied => mountstat3::MNT3ERR_ACCES,
        Error::NotDirectory => mountstat3::MNT3ERR_NOTDIR,
        Error::InvalidArgument => mountstat3::MNT3ERR_INVAL,
        Error::NameTooLong => mountstat3::MNT3ERR_NAMETOOLONG,
        Error::NotSupported => mountstat3::MNT3ERR_NOTSUPP,
        _ => mountstat3::MNT3ERR_IO,
    }
}
