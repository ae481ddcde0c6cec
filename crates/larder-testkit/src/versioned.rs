//! A metadata server and disks of earlier versions, as far as their callers can tell.

use larder_disk::DiskService;
use larder_meta::Metadata;
use larder_rpc::Program;
use larder_rpc::server::{Answer, Call, Service};
use larder_wire::meta::calls::{Destage, Make};
use larder_wire::meta::{PROCEDURE_NAMES, Res, Status};
use larder_wire::rpc::{CallHeader, Outcome};
use larder_wire::{Procedure, disk};

/// A metadata server with the procedures of an earlier version: one that has no MAKE destages files
/// alone.
#[derive(Clone, Debug)]
pub struct Versioned {
    metadata: Metadata,
    programs: [Program; 1],
}

impl Versioned {
    /// One that has the procedures with lower numbers than `procedures`.
    pub fn new(metadata: Metadata, procedures: u32) -> Versioned {
        let count = (procedures as usize).min(PROCEDURE_NAMES.len());
        let names = PROCEDURE_NAMES.split_at(count).0;
        Versioned { metadata, programs: [Program { procedures: names, ..larder_meta::PROGRAM }] }
    }
}

impl Service for Versioned {
    type Caller = <Metadata as Service>::Caller;

    fn programs(&self) -> &[Program] {
        &self.programs
    }

    fn admit(&self, header: &CallHeader) -> Result<Self::Caller, Outcome> {
        self.metadata.admit(header)
    }

    fn is_repeatable(&self, program: u32, procedure: u32) -> bool {
        self.metadata.is_repeatable(program, procedure)
    }

    fn results_bytes_max(&self, program: u32, procedure: u32, call: &[u8]) -> usize {
        self.metadata.results_bytes_max(program, procedure, call)
    }

    fn calls_back(&self) -> bool {
        self.metadata.calls_back()
    }

    async fn call(&self, call: Call<Self::Caller>) -> Answer {
        let has_make = self.programs[0].procedures.len() > Make::NUMBER as usize;
        if !has_make && call.header.procedure == Destage::NUMBER {
            let refused: Res<()> = Err(Status::IsDirectory);
            return call.reply(&refused, true);
        }
        self.metadata.call(call).await
    }
}

/// A disk with the procedures of an earlier version.
#[derive(Clone, Debug)]
pub(crate) struct VersionedDisk {
    disk: DiskService,
    programs: [Program; 1],
}

impl VersionedDisk {
    /// One that has the procedures with lower numbers than `procedures`.
    pub(crate) fn new(service: DiskService, procedures: u32) -> VersionedDisk {
        let count = (procedures as usize).min(disk::PROCEDURE_NAMES.len());
        let procedures = disk::PROCEDURE_NAMES.split_at(count).0;
        let program = Program { number: disk::PROGRAM, version: disk::VERSION, procedures };
        VersionedDisk { disk: service, programs: [program] }
    }
}

impl Service for VersionedDisk {
    type Caller = ();

    fn programs(&self) -> &[Program] {
        &self.programs
    }

    fn admit(&self, header: &CallHeader) -> Result<(), Outcome> {
        self.disk.admit(header)
    }

    fn is_repeatable(&self, program: u32, procedure: u32) -> bool {
        self.disk.is_repeatable(program, procedure)
    }

    fn results_bytes_max(&self, program: u32, procedure: u32, call: &[u8]) -> usize {
        self.disk.results_bytes_max(program, procedure, call)
    }

    async fn call(&self, call: Call<()>) -> Answer {
        self.disk.call(call).await
    }
}
