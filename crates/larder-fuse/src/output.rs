//! The answer to a request, independent of the transport.

use bytes::Bytes;
use zerocopy::{Immutable, IntoBytes};

use crate::abi::CreateOut;
use crate::late::Late;

/// The answer to one request.
pub(crate) enum Response {
    /// It is there.
    Now(Output),
    /// It will be.
    Later(Late),
    /// The kernel expects none.
    Nothing,
}

/// An error, or a structure followed by data.
#[derive(Debug)]
pub(crate) struct Output {
    /// 0, or a number of `errno.h`.
    pub(crate) errno: i32,
    fixed: [u8; FIXED_MAX],
    fixed_len: usize,
    /// Follows the structure.
    pub(crate) data: Bytes,
}

/// The longest structure of a reply.
const FIXED_MAX: usize = size_of::<CreateOut>();

impl Output {
    /// Success, without more.
    pub(crate) fn empty() -> Output {
        Output { errno: 0, fixed: [0; FIXED_MAX], fixed_len: 0, data: Bytes::new() }
    }

    /// An error, by its number.
    pub(crate) fn error(errno: i32) -> Output {
        Output { errno, ..Output::empty() }
    }

    /// A structure.
    pub(crate) fn of(body: &(impl IntoBytes + Immutable)) -> Output {
        let mut output = Output::empty();
        let bytes = body.as_bytes();
        output.fixed[..bytes.len()].copy_from_slice(bytes);
        output.fixed_len = bytes.len();
        output
    }

    /// Bytes.
    pub(crate) fn data(data: impl Into<Bytes>) -> Output {
        Output { data: data.into(), ..Output::empty() }
    }

    /// The structure's bytes.
    pub(crate) fn fixed(&self) -> &[u8] {
        &self.fixed[..self.fixed_len]
    }

    /// Bytes of structure and data.
    pub(crate) fn len(&self) -> usize {
        self.fixed_len + self.data.len()
    }
}

impl Response {
    /// An error that is known at once.
    pub(crate) fn error(errno: i32) -> Response {
        Response::Now(Output::error(errno))
    }
}
