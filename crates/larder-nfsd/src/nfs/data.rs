//! READ, WRITE and COMMIT (RFC 1813, 3.3.6, 3.3.7, 3.3.21).

use larder_wire::nfs3::{
    COMMIT3args, COMMIT3res, COMMIT3resok, READ3args, READ3res, READ3resok, WRITE3args, WRITE3res,
    WRITE3resok, nfsstat3, wcc_data,
};

use super::{Caller, FILE_BYTES_MAX, Nfs, ask, fail, with};
use crate::words;

impl Nfs {
    /// Returns the attributes from just before the bytes were read. If another client writes in
    /// between, this client's bytes are newer than their attributes, and it asks again. In the
    /// other order it would keep old bytes as new.
    pub(crate) async fn read(&self, caller: &Caller, args: READ3args) -> READ3res {
        let ino = self.resolve(&args.file).await.map_err(|status| fail(status, None))?;
        let count = args.count.min(caller.transfer_bytes_max);
        let attr = self.attr(caller, ino).await;
        let file_attributes = attr.as_ref().ok().map(words::fattr);
        let done = async {
            let size = attr?.size;
            if args.offset > FILE_BYTES_MAX {
                return Ok(READ3resok {
                    file_attributes,
                    count: 0,
                    eof: true,
                    data: Default::default(),
                });
            }
            let data = ask(self.fs.read(&caller.cred, ino, None, args.offset, count)).await?;
            let read_bytes = u32::try_from(data.len()).unwrap_or(u32::MAX).min(count);
            let data = data.slice(..read_bytes as usize);
            let end = args.offset + u64::from(read_bytes);
            let eof = read_bytes < count || end == size;
            Ok(READ3resok { file_attributes, count: read_bytes, eof, data: data.into() })
        };
        with(done.await, file_attributes, |answer| answer)
    }

    pub(crate) async fn write(&self, caller: &Caller, args: WRITE3args) -> WRITE3res {
        let none = wcc_data::default();
        let ino = self.resolve(&args.file).await.map_err(|status| fail(status, none))?;
        let stability = words::stability(args.stable);
        let done = async {
            if args.count as usize != args.data.len() || args.count > caller.transfer_bytes_max {
                return Err(nfsstat3::NFS3ERR_INVAL);
            }
            if args.offset > FILE_BYTES_MAX - u64::from(args.count) {
                return Err(nfsstat3::NFS3ERR_FBIG);
            }
            let (cred, data) = (&caller.cred, &args.data);
            ask(self.fs.write(cred, ino, None, args.offset, data, stability)).await
        };
        let done = done.await;
        let change = done.as_ref().map(|written| written.change).unwrap_or_default();
        let file_wcc = self.file_changed(caller, ino, change).await;
        with(done, file_wcc, |written| WRITE3resok {
            file_wcc,
            count: written.len,
            committed: words::stable(written.stability),
            verf: written.verifier.0.to_be_bytes(),
        })
    }

    /// Commits the whole file: [`larder_vfs::FileSystem`] does not commit ranges. It changes
    /// nothing that a client sees, so there are no attributes from before.
    pub(crate) async fn commit(&self, caller: &Caller, args: COMMIT3args) -> COMMIT3res {
        let none = wcc_data::default();
        let ino = self.resolve(&args.file).await.map_err(|status| fail(status, none))?;
        let done = ask(self.fs.fsync(&caller.cred, ino, None)).await;
        let file_wcc = wcc_data { before: None, after: self.post_op(caller, ino).await };
        with(done, file_wcc, |verifier| COMMIT3resok { file_wcc, verf: verifier.0.to_be_bytes() })
    }
}
