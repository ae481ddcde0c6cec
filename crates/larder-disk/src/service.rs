//! The program of disks behind a server of `larder-rpc`.

use std::sync::Arc;

use larder_rpc::Program;
use larder_rpc::server::{Answer, Call, Service};
use larder_wire::Procedure;
use larder_wire::disk::sealed::Sealed;
use larder_wire::disk::words::{
    AwaitWrittenHead, ClearHead, CopyHead, EpochHead, FetchHead, FlushHead, GroupReplaceHead,
    HandshakeCall, Head, ReadHead, RefreshHead, Res, RevokeHead, StatusHead, WriteFromHead,
    WriteHead, read_length,
};
use larder_wire::disk::{PROCEDURE_NAMES, PROGRAM, VERSION};
use larder_wire::rpc::{CallHeader, Outcome};
use larder_wire::xdr::{Decode, Encode};

use crate::control::ControlHead;
use crate::device::{ClientHead, Device};

const PROGRAMS: [Program; 1] =
    [Program { number: PROGRAM, version: VERSION, procedures: PROCEDURE_NAMES }];

/// A disk as a service. Clones serve the same disk.
#[derive(Clone, Debug)]
pub struct DiskService {
    device: Arc<Device>,
}

impl DiskService {
    /// Serves `device`.
    pub fn new(device: Arc<Device>) -> DiskService {
        DiskService { device }
    }

    async fn client<H: ClientHead + Send + Sync>(&self, mut call: Call<()>) -> Answer {
        match call.arguments::<Sealed<H>>() {
            Ok(request) => answer(&call, &self.device.serve(request).await),
            Err(refused) => refused,
        }
    }

    async fn control<H: ControlHead>(&self, mut call: Call<()>) -> Answer {
        match call.arguments::<Sealed<H>>() {
            Ok(request) => {
                let beside = call.peer.address.ip();
                answer(&call, &self.device.order(request, beside).await)
            }
            Err(refused) => refused,
        }
    }

    async fn handshake(&self, mut call: Call<()>) -> Answer {
        match call.arguments::<HandshakeCall>() {
            Ok(hello) => answer(&call, &self.device.handshake(&hello).await),
            Err(refused) => refused,
        }
    }
}

fn answer<T: Encode + Decode>(call: &Call<()>, results: &Res<T>) -> Answer {
    call.reply(results, results.is_err())
}

impl Service for DiskService {
    type Caller = ();

    fn programs(&self) -> &[Program] {
        &PROGRAMS
    }

    /// Anyone who reaches the disk may call: the request itself shows its authority.
    fn admit(&self, _header: &CallHeader) -> Result<(), Outcome> {
        Ok(())
    }

    /// A request that comes twice is known by its sequence number.
    fn is_repeatable(&self, _program: u32, _procedure: u32) -> bool {
        true
    }

    fn results_bytes_max(&self, _program: u32, procedure: u32, call: &[u8]) -> usize {
        if procedure == ReadHead::NUMBER { read_length(call) } else { 0 }
    }

    async fn call(&self, call: Call<()>) -> Answer {
        match call.header.procedure {
            HandshakeCall::NUMBER => self.handshake(call).await,
            ReadHead::NUMBER => self.client::<ReadHead>(call).await,
            WriteHead::NUMBER => self.client::<WriteHead>(call).await,
            WriteFromHead::NUMBER => self.client::<WriteFromHead>(call).await,
            FlushHead::NUMBER => self.client::<FlushHead>(call).await,
            RefreshHead::NUMBER => self.control::<RefreshHead>(call).await,
            RevokeHead::NUMBER => self.control::<RevokeHead>(call).await,
            GroupReplaceHead::NUMBER => self.control::<GroupReplaceHead>(call).await,
            EpochHead::NUMBER => self.control::<EpochHead>(call).await,
            CopyHead::NUMBER => self.control::<CopyHead>(call).await,
            ClearHead::NUMBER => self.control::<ClearHead>(call).await,
            StatusHead::NUMBER => self.control::<StatusHead>(call).await,
            AwaitWrittenHead::NUMBER => self.control::<AwaitWrittenHead>(call).await,
            FetchHead::NUMBER => self.control::<FetchHead>(call).await,
            _ => call.reply(&(), false),
        }
    }
}
