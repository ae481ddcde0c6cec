//! Options of metadata servers for an archive.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use larder_archive::{Archive, Credentials, Place, Shape, Version};
use larder_meta::Options;
use larder_meta::archive::{Store, Versions, versions};
use larder_meta::engine::Engine;
use larder_meta::volume;

use crate::error::Usage;

/// How long a request to the store is made again before it counts as failed. The metadata server
/// asks again after that.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where versions of files go whose class has level archive.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Archiving {
    /// Put versions of files whose class asks for level archive into this bucket of an
    /// S3-compatible store
    #[arg(long, value_name = "s3://BUCKET[/PREFIX]")]
    archive: Option<String>,
    /// Address of the store, as in https://s3.example.com [default: Amazon's]
    #[arg(long, value_name = "URL", requires = "archive")]
    archive_endpoint: Option<String>,
    /// Region of the bucket [default: us-east-1, which stores without regions expect]
    #[arg(long, value_name = "REGION", requires = "archive")]
    archive_region: Option<String>,
    /// File with the keys of the store's account, as in ~/.aws/credentials; only its owner may be
    /// able to read it [default: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of the environment]
    #[arg(long, value_name = "FILE", requires = "archive")]
    archive_credentials: Option<PathBuf>,
    /// Certificates of authorities that may have signed the store's, in PEM, beside the system's
    #[arg(long, value_name = "FILE", requires = "archive")]
    archive_ca: Option<PathBuf>,
}

/// Where what is in memory disks is when its class wants it durable within a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Durable {
    /// On disks that are no memory disks
    #[default]
    Disks,
    /// In the archive
    Archive,
}

/// The same for a server, and what the archive is for.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ServerArchive {
    #[command(flatten)]
    archiving: Archiving,
    /// Where bytes go that classes let be in memory for a time, and want durable after that:
    /// disks, or archive. In the archive a file is durable as a whole: from a change until it is
    /// there again, losing the memory loses the file. What is to be durable at once is on disks in
    /// any case
    #[arg(long, value_name = "WHERE", requires = "archive", hide_possible_values = true)]
    durable: Option<Durable>,
}

impl ServerArchive {
    /// Options of a metadata server with this archive, if there is one. Asks the store nothing.
    ///
    /// # Errors
    /// A line for the user.
    pub(crate) fn options(&self) -> Result<Options> {
        let archive = self.archiving.archive()?;
        Ok(Options {
            archive: archive.map(|archive| Arc::new(archive) as Arc<dyn Store>),
            is_archive_durable: self.durable == Some(Durable::Archive),
            ..Options::default()
        })
    }
}

impl Archiving {
    fn archive(&self) -> Result<Option<Archive>> {
        let Some(url) = &self.archive else { return Ok(None) };
        let (endpoint, region) = (self.archive_endpoint.as_deref(), self.archive_region.as_deref());
        let place = Place::parse(url, endpoint, region);
        let mut place = place.map_err(|error| Usage(format!("--archive: {error}")))?;
        if let Some(path) = &self.archive_ca {
            let about = || format!("cannot use the certificates in {}", path.display());
            place =
                place.trusting(&std::fs::read(path).with_context(about)?).with_context(about)?;
        }
        let credentials = match &self.archive_credentials {
            Some(path) => Credentials::read(path)?,
            None => Credentials::from_environment(|name| std::env::var(name).ok())?,
        };
        Ok(Some(Archive::new(place, credentials, Shape::default(), PATIENCE)?))
    }

    /// Compares the store, if one is named, with the records of a volume that no server serves.
    /// With `is_repair`, versions that no record names are deleted there.
    ///
    /// # Errors
    /// If the volume or the store cannot be read.
    pub(crate) fn check(&self, engine: &dyn Engine, is_repair: bool) -> Result<Compared> {
        let Some(archive) = self.archive()? else { return Ok(Compared::default()) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.context("cannot start the runtime")?.block_on(async {
            // First: what is put after that is not in the list.
            let mut listed = BTreeSet::new();
            let volume = volume::id(engine)?.0;
            let mut seen = |version| {
                listed.insert(version);
            };
            archive.versions(volume, &mut seen).await?;
            let Versions { held, unneeded } = versions(engine)?;
            let known = |version: &&Version| held.contains(version) || unneeded.contains(version);
            let orphans: Vec<Version> =
                listed.iter().filter(|version| !known(version)).copied().collect();
            for version in orphans.iter().filter(|_| is_repair) {
                archive.delete(version).await?;
            }
            let missing = held.difference(&listed).copied().collect();
            Ok(Compared { orphans, missing })
        })
    }
}

/// How a store differs from a volume's records.
#[derive(Debug, Default)]
pub(crate) struct Compared {
    /// Versions that no record names.
    pub(crate) orphans: Vec<Version>,
    /// Versions that the store lacks.
    pub(crate) missing: Vec<Version>,
}
