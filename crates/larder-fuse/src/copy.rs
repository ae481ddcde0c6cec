//! Copies within a file system: what COPY_FILE_RANGE asks for.
//!
//! For a file system that copies nothing the request is refused once, with ENOSYS; for two files
//! between which the file system does not copy, with EOPNOTSUPP. The kernel reads and writes itself
//! after either.

use larder_vfs::{Ino, OpenId, OpenOffset, Result};

use crate::abi::{CopyFileRangeIn, CopyFileRangeOut, InHeader, Opcode, WriteOut};
use crate::errno::errno;
use crate::output::Output;

/// Most that COPY_FILE_RANGE can answer, in bytes, in whole pages.
const COPIED_BYTES_MAX: u64 = (u32::MAX as u64) & !4095;

/// The form of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Of COPY_FILE_RANGE.
    Narrow,
    /// Of COPY_FILE_RANGE_64.
    Wide,
}

impl Form {
    pub(crate) fn of(header: &InHeader) -> Form {
        let is_wide = header.opcode == Opcode::CopyFileRange64 as u32;
        if is_wide { Form::Wide } else { Form::Narrow }
    }
}

/// The two ranges and the length; `None` if there are flags: the kernel defines none.
pub(crate) fn asked(
    header: &InHeader,
    asked: &CopyFileRangeIn,
) -> Option<(OpenOffset, OpenOffset, u64)> {
    let from =
        OpenOffset { ino: Ino(header.nodeid), open: OpenId(asked.fh_in), offset: asked.off_in };
    let to = OpenOffset {
        ino: Ino(asked.nodeid_out),
        open: OpenId(asked.fh_out),
        offset: asked.off_out,
    };
    (asked.flags == 0).then(|| (from, to, asked.len.min(COPIED_BYTES_MAX)))
}

/// The answer.
pub(crate) fn copied(form: Form, copied: Result<u64>) -> Output {
    match (copied, form) {
        (Ok(bytes_copied), Form::Wide) => Output::of(&CopyFileRangeOut { bytes_copied }),
        (Ok(len), Form::Narrow) => {
            let size = u32::try_from(len).expect("no more than was asked for");
            Output::of(&WriteOut { size, padding: 0 })
        }
        (Err(error), _) => Output::error(errno(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_copy_file_range_asks_for() {
        let request = CopyFileRangeIn {
            fh_in: 1,
            off_in: 2,
            nodeid_out: 3,
            fh_out: 4,
            off_out: 5,
            len: 6,
            flags: 0,
        };
        let header =
            |opcode: Opcode| InHeader { nodeid: 7, opcode: opcode as u32, ..InHeader::default() };
        let narrow = header(Opcode::CopyFileRange);
        let from = OpenOffset { ino: Ino(7), open: OpenId(1), offset: 2 };
        let to = OpenOffset { ino: Ino(3), open: OpenId(4), offset: 5 };
        assert_eq!(asked(&narrow, &request), Some((from, to, 6)));
        let endless = CopyFileRangeIn { len: u64::MAX, ..request };
        assert_eq!(asked(&narrow, &endless).unwrap().2, COPIED_BYTES_MAX);
        assert_eq!(asked(&narrow, &CopyFileRangeIn { flags: 1, ..request }), None);
        let forms = [narrow, header(Opcode::CopyFileRange64)].map(|header| Form::of(&header));
        assert_eq!(forms, [Form::Narrow, Form::Wide]);
    }
}
