//! Requests of the kernel, decoded without I/O and without copies.
//!
//! A request is a header, the structure of its operation, and the rest: names that end in a zero
//! byte, or data. From `/dev/fuse` they come in one piece; a ring entry has a place for each. Bytes
//! that are not a request of the protocol are an error, never a crash.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::abi::{
    self, AccessIn, BatchForgetIn, BmapIn, CopyFileRangeIn, CreateIn, FallocateIn, FlushIn,
    ForgetIn, ForgetOne, FsyncIn, GetattrIn, GetxattrIn, InHeader, InitIn, InterruptIn, IoctlIn,
    LinkIn, LkIn, LseekIn, MkdirIn, MknodIn, NotifyRetrieveIn, Opcode, OpenIn, PollIn, ReadIn,
    ReleaseIn, RemoveMappingIn, Rename2In, RenameIn, SetattrIn, SetupMappingIn, SetxattrIn,
    StatxIn, SyncfsIn, WriteIn,
};

/// Why bytes are no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// They end too soon, or their length is not the one that the header gives.
    #[error("the request has a wrong length")]
    Length,
    /// A name is empty, does not end, or contains a slash.
    #[error("the request has a wrong name")]
    Name,
    /// There is no such operation. The header is right, so the request can be refused.
    #[error("the operation is not known")]
    Opcode,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The caller, and the inode.
    pub header: InHeader,
    /// The operation.
    pub operation: Operation<'a>,
}

/// The operation on the inode in the header.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Operation<'a> {
    Lookup { name: &'a OsStr },
    Forget(ForgetIn),
    Getattr(GetattrIn),
    Setattr(SetattrIn),
    Readlink,
    Symlink { name: &'a OsStr, target: &'a OsStr },
    Mknod { mknod: MknodIn, name: &'a OsStr },
    Mkdir { mkdir: MkdirIn, name: &'a OsStr },
    Unlink { name: &'a OsStr },
    Rmdir { name: &'a OsStr },
    Rename { rename: Rename2In, from: &'a OsStr, to: &'a OsStr },
    Link { link: LinkIn, name: &'a OsStr },
    Open(OpenIn),
    Read(ReadIn),
    Write { write: WriteIn, data: &'a [u8] },
    Statfs,
    Release(ReleaseIn),
    Fsync(FsyncIn),
    Setxattr { set: SetxattrIn, name: &'a OsStr, value: &'a [u8] },
    Getxattr { get: GetxattrIn, name: &'a OsStr },
    Listxattr(GetxattrIn),
    Removexattr { name: &'a OsStr },
    Flush(FlushIn),
    Init(InitIn),
    Opendir(OpenIn),
    Readdir(ReadIn),
    Releasedir(ReleaseIn),
    Fsyncdir(FsyncIn),
    Getlk(LkIn),
    Setlk(LkIn),
    Setlkw(LkIn),
    Access(AccessIn),
    Create { create: CreateIn, name: &'a OsStr },
    Interrupt(InterruptIn),
    Bmap(BmapIn),
    Destroy,
    Ioctl { ioctl: IoctlIn, data: &'a [u8] },
    Poll(PollIn),
    NotifyReply { retrieve: NotifyRetrieveIn, data: &'a [u8] },
    BatchForget(&'a [ForgetOne]),
    Fallocate(FallocateIn),
    Readdirplus(ReadIn),
    Lseek(LseekIn),
    CopyFileRange(CopyFileRangeIn),
    SetupMapping(SetupMappingIn),
    RemoveMapping(RemoveMappingIn),
    Syncfs(SyncfsIn),
    Tmpfile { create: CreateIn, name: &'a OsStr },
    Statx(StatxIn),
}

impl<'a> Request<'a> {
    /// Decodes what one read of `/dev/fuse` gave.
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn decode(bytes: &'a [u8]) -> Result<Request<'a>, Malformed> {
        let (header, rest) = header(bytes)?;
        if header.len as usize != bytes.len() {
            return Err(Malformed::Length);
        }
        let opcode = Opcode::from_number(header.opcode).ok_or(Malformed::Opcode)?;
        // Extensions (security contexts, groups) come last; we ask for none.
        let extensions = usize::from(header.total_extlen) * 8;
        let end = rest.len().checked_sub(extensions).ok_or(Malformed::Length)?;
        let rest = &rest[..end];
        let fixed = fixed_len(opcode).min(rest.len());
        let (fixed, rest) = rest.split_at(fixed);
        Ok(Request { header, operation: operation(opcode, fixed, rest)? })
    }

    /// Decodes a request whose parts are separate, as in a ring entry: `fixed` may be longer than
    /// the operation's structure.
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn decode_parts(
        header: InHeader,
        fixed: &'a [u8],
        rest: &'a [u8],
    ) -> Result<Request<'a>, Malformed> {
        let opcode = Opcode::from_number(header.opcode).ok_or(Malformed::Opcode)?;
        let fixed = fixed.get(..fixed_len(opcode)).ok_or(Malformed::Length)?;
        let extensions = usize::from(header.total_extlen) * 8;
        let end = rest.len().checked_sub(extensions).ok_or(Malformed::Length)?;
        Ok(Request { header, operation: operation(opcode, fixed, &rest[..end])? })
    }
}

/// The header of a request: enough to refuse it, whatever follows.
///
/// # Errors
/// If there is none.
pub fn header(bytes: &[u8]) -> Result<(InHeader, &[u8]), Malformed> {
    InHeader::read_from_prefix(bytes).map_err(|_| Malformed::Length)
}

/// Size of the structure that follows the header.
fn fixed_len(opcode: Opcode) -> usize {
    use Opcode as O;
    match opcode {
        O::Lookup | O::Readlink | O::Symlink | O::Unlink | O::Rmdir | O::Statfs => 0,
        O::Removexattr | O::Destroy => 0,
        O::Forget => size_of::<ForgetIn>(),
        O::Getattr => size_of::<GetattrIn>(),
        O::Setattr => size_of::<SetattrIn>(),
        O::Mknod => size_of::<MknodIn>(),
        O::Mkdir => size_of::<MkdirIn>(),
        O::Rename => size_of::<RenameIn>(),
        O::Rename2 => size_of::<Rename2In>(),
        O::Link => size_of::<LinkIn>(),
        O::Open | O::Opendir => size_of::<OpenIn>(),
        O::Read | O::Readdir | O::Readdirplus => size_of::<ReadIn>(),
        O::Write => size_of::<WriteIn>(),
        O::Release | O::Releasedir => size_of::<ReleaseIn>(),
        O::Fsync | O::Fsyncdir => size_of::<FsyncIn>(),
        O::Setxattr => size_of::<SetxattrIn>(),
        O::Getxattr | O::Listxattr => size_of::<GetxattrIn>(),
        O::Flush => size_of::<FlushIn>(),
        O::Init => size_of::<InitIn>(),
        O::Getlk | O::Setlk | O::Setlkw => size_of::<LkIn>(),
        O::Access => size_of::<AccessIn>(),
        O::Create | O::Tmpfile => size_of::<CreateIn>(),
        O::Interrupt => size_of::<InterruptIn>(),
        O::Bmap => size_of::<BmapIn>(),
        O::Ioctl => size_of::<IoctlIn>(),
        O::Poll => size_of::<PollIn>(),
        O::NotifyReply => size_of::<NotifyRetrieveIn>(),
        O::BatchForget => size_of::<BatchForgetIn>(),
        O::Fallocate => size_of::<FallocateIn>(),
        O::Lseek => size_of::<LseekIn>(),
        O::CopyFileRange | O::CopyFileRange64 => size_of::<CopyFileRangeIn>(),
        O::SetupMapping => size_of::<SetupMappingIn>(),
        O::RemoveMapping => size_of::<RemoveMappingIn>(),
        O::Syncfs => size_of::<SyncfsIn>(),
        O::Statx => size_of::<StatxIn>(),
    }
}

fn operation<'a>(
    opcode: Opcode,
    fixed: &'a [u8],
    rest: &'a [u8],
) -> Result<Operation<'a>, Malformed> {
    use Operation as Op;
    let mut rest = Rest(rest);
    let operation = match opcode {
        Opcode::Lookup => Op::Lookup { name: rest.looked_up()? },
        Opcode::Symlink => Op::Symlink { name: rest.name()?, target: rest.string()? },
        Opcode::Mknod => Op::Mknod { mknod: read(fixed)?, name: rest.name()? },
        Opcode::Mkdir => Op::Mkdir { mkdir: read(fixed)?, name: rest.name()? },
        Opcode::Unlink => Op::Unlink { name: rest.name()? },
        Opcode::Rmdir => Op::Rmdir { name: rest.name()? },
        Opcode::Rename => {
            let RenameIn { newdir } = read(fixed)?;
            let rename = Rename2In { newdir, ..Rename2In::default() };
            Op::Rename { rename, from: rest.name()?, to: rest.name()? }
        }
        Opcode::Rename2 => {
            Op::Rename { rename: read(fixed)?, from: rest.name()?, to: rest.name()? }
        }
        Opcode::Link => Op::Link { link: read(fixed)?, name: rest.name()? },
        Opcode::Create => Op::Create { create: read(fixed)?, name: rest.name()? },
        Opcode::Tmpfile => Op::Tmpfile { create: read(fixed)?, name: rest.string()? },
        Opcode::Getxattr => Op::Getxattr { get: read(fixed)?, name: rest.string()? },
        Opcode::Removexattr => Op::Removexattr { name: rest.string()? },
        Opcode::Setxattr => {
            let set: SetxattrIn = read(fixed)?;
            Op::Setxattr { set, name: rest.string()?, value: rest.data(set.size)? }
        }
        Opcode::Write => {
            let write: WriteIn = read(fixed)?;
            Op::Write { write, data: rest.data(write.size)? }
        }
        Opcode::Ioctl => {
            let ioctl: IoctlIn = read(fixed)?;
            Op::Ioctl { ioctl, data: rest.data(ioctl.in_size)? }
        }
        Opcode::NotifyReply => {
            let retrieve: NotifyRetrieveIn = read(fixed)?;
            Op::NotifyReply { retrieve, data: rest.data(retrieve.size)? }
        }
        Opcode::BatchForget => {
            let BatchForgetIn { count, .. } = read(fixed)?;
            Op::BatchForget(rest.forgotten(count)?)
        }
        _ => return bare(opcode, fixed),
    };
    Ok(operation)
}

/// Operations without a name or data.
fn bare(opcode: Opcode, fixed: &[u8]) -> Result<Operation<'static>, Malformed> {
    use Operation as Op;
    Ok(match opcode {
        Opcode::Forget => Op::Forget(read(fixed)?),
        Opcode::Getattr => Op::Getattr(read(fixed)?),
        Opcode::Setattr => Op::Setattr(read(fixed)?),
        Opcode::Readlink => Op::Readlink,
        Opcode::Open => Op::Open(read(fixed)?),
        Opcode::Read => Op::Read(read(fixed)?),
        Opcode::Statfs => Op::Statfs,
        Opcode::Release => Op::Release(read(fixed)?),
        Opcode::Fsync => Op::Fsync(read(fixed)?),
        Opcode::Listxattr => Op::Listxattr(read(fixed)?),
        Opcode::Flush => Op::Flush(read(fixed)?),
        Opcode::Init => Op::Init(read_init(fixed)?),
        Opcode::Opendir => Op::Opendir(read(fixed)?),
        Opcode::Readdir => Op::Readdir(read(fixed)?),
        Opcode::Releasedir => Op::Releasedir(read(fixed)?),
        Opcode::Fsyncdir => Op::Fsyncdir(read(fixed)?),
        Opcode::Getlk => Op::Getlk(read(fixed)?),
        Opcode::Setlk => Op::Setlk(read(fixed)?),
        Opcode::Setlkw => Op::Setlkw(read(fixed)?),
        Opcode::Access => Op::Access(read(fixed)?),
        Opcode::Interrupt => Op::Interrupt(read(fixed)?),
        Opcode::Bmap => Op::Bmap(read(fixed)?),
        Opcode::Destroy => Op::Destroy,
        Opcode::Poll => Op::Poll(read(fixed)?),
        Opcode::Fallocate => Op::Fallocate(read(fixed)?),
        Opcode::Readdirplus => Op::Readdirplus(read(fixed)?),
        Opcode::Lseek => Op::Lseek(read(fixed)?),
        Opcode::CopyFileRange | Opcode::CopyFileRange64 => Op::CopyFileRange(read(fixed)?),
        Opcode::SetupMapping => Op::SetupMapping(read(fixed)?),
        Opcode::RemoveMapping => Op::RemoveMapping(read(fixed)?),
        Opcode::Syncfs => Op::Syncfs(read(fixed)?),
        Opcode::Statx => Op::Statx(read(fixed)?),
        _ => return Err(Malformed::Opcode),
    })
}

fn read<T: FromBytes + KnownLayout + Immutable>(fixed: &[u8]) -> Result<T, Malformed> {
    T::read_from_bytes(fixed).map_err(|_| Malformed::Length)
}

fn read_init(fixed: &[u8]) -> Result<InitIn, Malformed> {
    if fixed.len() < abi::INIT_IN_SHORT {
        return Err(Malformed::Length);
    }
    let mut whole = [0; size_of::<InitIn>()];
    whole[..fixed.len()].copy_from_slice(fixed);
    read(&whole)
}

/// The bytes after the fixed part.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    /// A string up to its zero byte.
    fn string(&mut self) -> Result<&'a OsStr, Malformed> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or(Malformed::Name)?;
        let (string, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        Ok(OsStr::from_bytes(string))
    }

    /// A name to look up: a component, or `..` or `.`.
    fn looked_up(&mut self) -> Result<&'a OsStr, Malformed> {
        let name = self.string()?;
        let wrong = name.is_empty() || name.as_bytes().contains(&b'/');
        if wrong { Err(Malformed::Name) } else { Ok(name) }
    }

    /// A name to make or remove.
    fn name(&mut self) -> Result<&'a OsStr, Malformed> {
        let name = self.looked_up()?;
        if name == "." || name == ".." { Err(Malformed::Name) } else { Ok(name) }
    }

    /// Exactly `size` bytes of data.
    fn data(&mut self, size: u32) -> Result<&'a [u8], Malformed> {
        self.0.get(..size as usize).ok_or(Malformed::Length)
    }

    fn forgotten(&mut self, count: u32) -> Result<&'a [ForgetOne], Malformed> {
        let found = <[ForgetOne]>::ref_from_prefix_with_elems(self.0, count as usize);
        found.map(|(forgotten, _)| forgotten).map_err(|_| Malformed::Length)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;

    /// A message as `/dev/fuse` gives it, aligned.
    fn message(opcode: u32, rest: &[u8]) -> Vec<u64> {
        let len = size_of::<InHeader>() + rest.len();
        let header =
            InHeader { len: len as u32, opcode, unique: 2, nodeid: 1, ..InHeader::default() };
        let mut words = vec![0_u64; len.div_ceil(8)];
        let bytes = words.as_mut_bytes();
        bytes[..size_of::<InHeader>()].copy_from_slice(header.as_bytes());
        bytes[size_of::<InHeader>()..len].copy_from_slice(rest);
        words
    }

    fn decoded<'a>(words: &'a [u64], rest_len: usize) -> Result<Operation<'a>, Malformed> {
        let len = size_of::<InHeader>() + rest_len;
        Request::decode(&words.as_bytes()[..len]).map(|request| request.operation)
    }

    #[test]
    fn names_are_components() {
        for (bytes, name) in [
            (&b"a\0"[..], Ok("a")),
            (b"..\0", Ok("..")),
            (b"a", Err(Malformed::Name)),
            (b"\0", Err(Malformed::Name)),
            (b"a/b\0", Err(Malformed::Name)),
            (b"", Err(Malformed::Name)),
        ] {
            let words = message(Opcode::Lookup as u32, bytes);
            let expected = name.map(|name| Operation::Lookup { name: OsStr::new(name) });
            assert_eq!(decoded(&words, bytes.len()), expected);
        }
        let words = message(Opcode::Unlink as u32, b"..\0");
        assert_eq!(decoded(&words, 3), Err(Malformed::Name));
        let rename = [[9, 0, 0, 0, 0, 0, 0, 0].as_slice(), b"from\0to\0"].concat();
        let words = message(Opcode::Rename as u32, &rename);
        let Ok(Operation::Rename { rename: found, from, to }) = decoded(&words, rename.len())
        else {
            panic!("no rename");
        };
        assert_eq!((found.newdir, found.flags, from, to), (9, 0, "from".as_ref(), "to".as_ref()));
    }

    #[test]
    fn data_is_as_long_as_it_says() {
        let write = WriteIn { size: 3, ..WriteIn::default() };
        for (data, right) in [(&b"abc"[..], true), (b"abcd", true), (b"ab", false)] {
            let rest = [write.as_bytes(), data].concat();
            let words = message(Opcode::Write as u32, &rest);
            let found = decoded(&words, rest.len());
            match right {
                true => assert_eq!(found, Ok(Operation::Write { write, data: b"abc" })),
                false => assert_eq!(found, Err(Malformed::Length)),
            }
        }
    }

    #[test]
    fn forgotten_inodes_are_a_list() {
        let ones = [ForgetOne { nodeid: 2, nlookup: 1 }, ForgetOne { nodeid: 3, nlookup: 7 }];
        let batch = |count| {
            let head = BatchForgetIn { count, dummy: 0 };
            [head.as_bytes(), ones.as_bytes()].concat()
        };
        let words = message(Opcode::BatchForget as u32, &batch(2));
        assert_eq!(decoded(&words, 40), Ok(Operation::BatchForget(&ones)));
        let words = message(Opcode::BatchForget as u32, &batch(u32::MAX));
        assert_eq!(decoded(&words, 40), Err(Malformed::Length));
    }

    #[test]
    fn an_old_init_is_shorter() {
        let init = InitIn { major: 7, minor: 31, max_readahead: 1, flags: 5, ..InitIn::default() };
        let words = message(Opcode::Init as u32, &init.as_bytes()[..abi::INIT_IN_SHORT]);
        assert_eq!(decoded(&words, abi::INIT_IN_SHORT), Ok(Operation::Init(init)));
    }

    proptest! {
        /// No bytes crash the decoder, and what it accepts is within them.
        #[test]
        fn any_bytes_are_a_request_or_an_error(
            opcode in 0..60_u32,
            rest in proptest::collection::vec(any::<u8>(), 0..300),
            honest in any::<bool>(),
            cut in 0..340_usize,
        ) {
            let words = message(opcode, &rest);
            let len = size_of::<InHeader>() + rest.len();
            let bytes = &words.as_bytes()[..if honest { len } else { cut.min(len) }];
            if let Ok(request) = Request::decode(bytes) {
                prop_assert_eq!(request.header.len as usize, bytes.len());
                if let Operation::Write { write, data } = request.operation {
                    prop_assert_eq!(data.len(), write.size as usize);
                }
            }
            let (fixed, payload) = rest.split_at(rest.len().min(128));
            let header = InHeader { opcode, ..InHeader::default() };
            let _ = Request::decode_parts(header, fixed, payload);
        }
    }
}
