//! Reports of what is in a volume's archive, and goes there.

use larder_meta::{ArchiveTrouble, Archiving};
use serde::{Deserialize, Serialize};

use crate::options::Bytes;

/// What is in the archive, and goes there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ArchiveStatus {
    /// Where it is; nowhere if the metadata server was started without one.
    pub(crate) url: Option<String>,
    /// Whether it is the volume's level durable, for what may be in memory for a time.
    pub(crate) is_durable: bool,
    /// Files of which a version is there, and the bytes of these versions.
    pub(crate) held_files: usize,
    pub(crate) held_bytes: u64,
    /// Files whose present version is to be there now or later.
    pub(crate) due_files: usize,
    /// For how long the first of them has been due.
    pub(crate) late_ms: u64,
    /// Versions that are to be deleted, or are being put.
    pub(crate) unneeded: usize,
    /// Since the metadata server began: bytes that were put, and versions that were deleted.
    pub(crate) put_bytes: u64,
    pub(crate) deleted: u64,
    /// Why it did not do what it was asked for last.
    pub(crate) trouble: Option<String>,
    /// Whether it will be so until somebody does something.
    pub(crate) needs_somebody: bool,
}

impl ArchiveStatus {
    /// Nothing, if there is no archive and nothing is to be there.
    pub(crate) fn of(archiving: &Archiving) -> Option<ArchiveStatus> {
        let Archiving { url, held_files, held_bytes, due_files, late, unneeded, .. } = archiving;
        let is_used = *held_files > 0 || *due_files > 0 || *unneeded > 0;
        let trouble = archiving.trouble.clone();
        (url.is_some() || is_used).then(|| ArchiveStatus {
            url: url.clone(),
            is_durable: archiving.is_durable,
            held_files: *held_files,
            held_bytes: *held_bytes,
            due_files: *due_files,
            late_ms: u64::try_from(late.as_millis()).unwrap_or(u64::MAX),
            unneeded: *unneeded,
            put_bytes: archiving.put_bytes,
            deleted: archiving.deleted,
            needs_somebody: trouble.as_ref().is_some_and(|trouble| trouble.needs_somebody),
            trouble: trouble.map(|ArchiveTrouble { text, .. }| text),
        })
    }

    /// The same as lines.
    pub(super) fn tell(&self, line: &mut impl FnMut(&str, &str)) {
        let at = match &self.url {
            Some(url) => format!("{url}: "),
            None => "none: start the metadata server with --archive; ".to_owned(),
        };
        let due = match (self.due_files, self.late_ms) {
            (0, _) => String::new(),
            (files, 0) => format!("; {files} files go there when they are due"),
            (files, late) => {
                format!("; {files} files go there, the first was due {} s ago", late / 1000)
            }
        };
        let (bytes, files) = (Bytes(self.held_bytes), self.held_files);
        line("archive", &format!("{at}{bytes} of {files} files{due}"));
        if self.is_durable {
            line("", "it is level durable of what may be in memory for a time");
        }
        if self.unneeded > 0 {
            line("", &format!("{} versions are being put, or are to be deleted", self.unneeded));
        }
        if let Some(trouble) = &self.trouble {
            let until = if self.needs_somebody { "until that is mended" } else { "for now" };
            line("", &format!("nothing is put {until}: {trouble}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_reads_well() {
        let tell = |archiving: &Archiving| {
            let mut text = String::new();
            let status = ArchiveStatus::of(archiving)?;
            status.tell(&mut |word: &str, what: &str| text += &format!("{word:10}{what}\n"));
            Some(text)
        };
        let mut archiving = Archiving::default();
        assert_eq!(tell(&archiving), None);
        archiving.due_files = 2;
        let text = tell(&archiving).unwrap();
        assert!(text.starts_with("archive   none: start the metadata server with --archive"));
        archiving.url = Some("s3://backup/office".into());
        (archiving.held_files, archiving.held_bytes, archiving.unneeded) = (3, 1 << 20, 1);
        let text = tell(&archiving).unwrap();
        assert_eq!(
            text,
            "archive   s3://backup/office: 1.00 MiB of 3 files; 2 files go there when they are due\n          \
             1 versions are being put, or are to be deleted\n"
        );
        archiving.late = std::time::Duration::from_secs(70);
        archiving.is_durable = true;
        assert!(tell(&archiving).unwrap().contains("\n          it is level durable of what may"));
        let why = "Amazon S3 refuses the archive's keys: check the credentials".to_owned();
        archiving.trouble = Some(ArchiveTrouble { text: why, needs_somebody: true });
        let text = tell(&archiving).unwrap();
        assert!(text.contains("2 files go there, the first was due 70 s ago"), "{text}");
        assert!(text.contains("nothing is put until that is mended: Amazon S3 refuses"), "{text}");
    }
}
