//! A metadata server of an earlier version, as far as its clients can tell.

use larder_meta::Metadata;
use larder_rpc::Program;
use larder_rpc::server::{Answer, Call, Service};
use larder_wire::Procedure;
use larder_wire::meta::calls::{Destage, Make};
use larder_wire::meta::{PROCEDURE_NAMES, Res, Status};
use larder_wire::rpc::{CallHeader, Outcome};

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
