//! Reads what the server has at this moment: for a reader that cannot get a file in one version,
//! because the file changes faster than it is read.
//!
//! The version of such bytes is unknown, so they are not cached. Bytes that are unsent here are
//! part of the answer, wherever the server's file ends by now.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use larder_vfs::{Cred, Error, Result};

use super::fetch::read_slices;
use super::plan::{FileEnd, Source, plan};
use crate::core::Core;
use crate::node::Node;

impl Core {
    /// Reads what the server has now, together with what it does not have yet, while no change of
    /// ours is in flight. Each of its replies shows one version. The end of the server's file is
    /// the one that it reports now: the server may have lost uncommitted bytes, or another client
    /// may have truncated the file.
    pub(super) async fn read_as_it_is(
        &self,
        node: &Node,
        cred: &Cred,
        wanted: Range<u64>,
    ) -> Result<Bytes> {
        let _turn = node.transfer.begin(cred.deadline).await?;
        let file = self.file(node);
        let size = Core::file_end(node).size;
        let mut bytes = BytesMut::new();
        // Beyond the server's end there are zeros if unsent bytes follow; otherwise the file ends
        // there.
        let mut end = 0;
        for slice in plan(wanted, FileEnd { size, zero_point: size }, &file.dirty()) {
            let from = bytes.len();
            let slice_len = usize::try_from(slice.range.end - slice.range.start);
            let slice_len = slice_len.expect("a read is short");
            match slice.source {
                Source::Remote => {
                    self.read_server_now(node, cred, &slice.range, &mut bytes).await?;
                }
                _ => bytes.extend_from_slice(&read_slices(&file, &[slice]).ok_or(Error::Io)?),
            }
            if bytes.len() > from {
                end = bytes.len();
            }
            bytes.resize(from + slice_len, 0);
        }
        bytes.truncate(end);
        Ok(bytes.freeze())
    }

    /// Appends to `bytes` what the server has of a range now, up to where its file ends.
    async fn read_server_now(
        &self,
        node: &Node,
        cred: &Cred,
        range: &Range<u64>,
        bytes: &mut BytesMut,
    ) -> Result<()> {
        let request_max = u64::from(self.request_bytes_max());
        let mut at = range.start;
        while at < range.end {
            let (read, asked) =
                self.ask_bytes(node, cred, &(at..range.end.min(at + request_max))).await?;
            if let Some(attr) = read.attr {
                self.observe(node, attr, asked);
            }
            if read.data.is_empty() {
                break;
            }
            at += read.data.len() as u64;
            bytes.extend_from_slice(&read.data);
        }
        Ok(())
    }
}
