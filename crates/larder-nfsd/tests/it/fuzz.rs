//! One input of the fuzzer `export_request`: arbitrary bytes, sent to an export of the model.
//! Whatever they are, the export answers with a reply that can be decoded, or not at all, and
//! continues. The fuzzer includes this file, so it stands alone.
//!
//! The first byte of an input chooses what the rest is: a datagram, a stream of record marks and
//! records, or the arguments of a call whose RPC header is good and whose handles can be, so that
//! it gets as far as the file system.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use larder_nfsd::{Config, Programs, SourcePorts};
use larder_vfs::{Cred, Direct, MemRemote, New, Remote, SetAttr};
use larder_wire::record::{Heap, RecordAssembler};
use larder_wire::rpc::ReplyHeader;
use larder_wire::xdr::{Decode, Encoder, Framing};

/// Inputs after which the export is made anew, so that what they created does not pile up.
const INPUTS_MAX: u32 = 5000;

/// Longest record that is assembled, in bytes.
const RECORD_BYTES_MAX: usize = 1 << 20;

/// Longest reply, in bytes: what a datagram holds.
const REPLY_BYTES_MAX: usize = 65_507;

/// Bytes that one read of a socket returns.
const READ_BYTES: usize = 100;

/// In the arguments of a call: the next byte chooses a valid handle.
const HANDLE: u8 = 0xfe;

/// In the arguments of a call: the next byte is the length of the string that follows.
const STRING: u8 = 0xfd;

/// An export of the model, with a sender of messages.
pub(crate) struct Fuzzed {
    runtime: tokio::runtime::Runtime,
    programs: Programs,
    handles: Vec<Vec<u8>>,
    inputs: u32,
}

impl Fuzzed {
    /// Exports a directory with a file, a directory and a symbolic link in it.
    pub(crate) fn begin() -> Fuzzed {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let (programs, handles) = runtime.block_on(async {
            let remote = Arc::new(MemRemote::new());
            let (root, cred) = (remote.root().await.expect("a root").handle, Cred::root());
            let set = SetAttr { mode: Some(0o777), ..SetAttr::default() };
            let mut handles = vec![root.as_bytes().to_vec()];
            let link = New::Symlink("file".into());
            for (name, new) in [("file", New::File), ("dir", New::Directory), ("link", link)] {
                let made = remote.make(&cred, &root, name.as_ref(), new, set).await;
                handles.push(made.expect("it can be made").found.handle.as_bytes().to_vec());
            }
            let mut config = Config::new(address());
            config.rpc.source_ports = SourcePorts::Any;
            let fs = Direct::new(remote).await.expect("a file system");
            (Programs::new(config, Arc::new(fs)), handles)
        });
        Fuzzed { runtime, programs, handles, inputs: 0 }
    }

    /// Sends the messages of one input; returns the results without their RPC headers.
    ///
    /// # Panics
    /// If a reply cannot be decoded.
    pub(crate) fn feed(&mut self, input: &[u8]) -> Vec<Bytes> {
        self.inputs += 1;
        if self.inputs > INPUTS_MAX {
            *self = Fuzzed::begin();
        }
        let Some((kind, rest)) = input.split_first() else { return Vec::new() };
        let mut results = Vec::new();
        for message in self.messages(*kind, rest) {
            let asked = message.len();
            let answered = self.programs.answer(address(), message);
            let Some(mut reply) = self.runtime.block_on(answered) else { continue };
            assert!(reply.len() <= REPLY_BYTES_MAX, "{} bytes for {asked}", reply.len());
            ReplyHeader::decode(&mut reply).expect("a reply has a header");
            results.push(reply);
        }
        results
    }

    fn messages(&self, kind: u8, rest: &[u8]) -> Vec<Bytes> {
        match (kind % 4, rest) {
            (0, message) => vec![Bytes::copy_from_slice(message)],
            (1, stream) => {
                let mut records = RecordAssembler::new(Heap, RECORD_BYTES_MAX);
                let mut ready = Vec::new();
                let mut reads = stream.chunks(READ_BYTES);
                // A connection ends at the first bad mark.
                while let Some(read) = reads.next()
                    && records.push(read, &mut |record| ready.push(record)).is_ok()
                {
                }
                ready
            }
            (program, [procedure, user, arguments @ ..]) => {
                let program = if program == 2 { 100_003 } else { 100_005 };
                let (procedure, user) = (u32::from(procedure % 24), u32::from(user % 2));
                vec![self.call(program, procedure, user, arguments)]
            }
            _ => Vec::new(),
        }
    }

    /// A call of NFS or of MOUNT, by `user`. Other bytes than [`HANDLE`] and [`STRING`] are small
    /// numbers.
    fn call(&self, program: u32, procedure: u32, user: u32, arguments: &[u8]) -> Bytes {
        let mut out = Encoder::new(Framing::Datagram, 256);
        // A new xid, or the call would be taken for a retransmission of the one before.
        for unit in [self.inputs, 0, 2, program, 3, procedure, 1, 20, 0, 0, user, user, 0, 0, 0] {
            out.put_u32(unit);
        }
        let mut left = arguments;
        while let [first, behind @ ..] = left {
            left = match (*first, behind) {
                (HANDLE, [which, after @ ..]) => {
                    out.put_slice(&self.handles[usize::from(*which) % self.handles.len()]);
                    after
                }
                (STRING, [length, after @ ..]) => {
                    let (text, after) = after.split_at(after.len().min(usize::from(*length)));
                    out.put_slice(text);
                    after
                }
                (number, after) => {
                    out.put_u32(u32::from(number));
                    after
                }
            };
        }
        out.finish().to_bytes()
    }
}

fn address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 700))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Fuzzed;

    /// Inputs that the fuzzer started with, or found worth keeping, each a line of hexadecimal
    /// digits.
    const CORPUS: &str = include_str!("fuzz.corpus");

    #[test]
    fn an_export_outlives_what_a_fuzzer_sent() {
        let mut fuzzed = Fuzzed::begin();
        let mut succeeded = BTreeSet::new();
        for line in CORPUS.lines() {
            let digits = line.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
            let input: Vec<u8> = digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect();
            let results = fuzzed.feed(&input);
            let is_good = results.iter().any(|results| results.starts_with(&[0; 4]));
            if let [kind, procedure, ..] = input[..]
                && kind % 4 == 2
                && is_good
            {
                succeeded.insert(procedure % 24);
            }
        }
        // NULL has no results.
        assert_eq!(succeeded.into_iter().collect::<Vec<_>>(), (1..=21).collect::<Vec<_>>());
    }
}
