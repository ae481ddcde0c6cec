//! Cases on copies within a server. A server without copies must say so.

use crate::{CopyEnd, Error, Handle, New, RemoteCopied, Result};

use super::bench::{Bench, Outcome, holds, refused, same, works};

super::table! {
    a_copied_range_has_the_bytes_of_its_source [Copy];
    a_long_file_is_copied_whole [Copy];
    a_copy_ends_where_its_source_ends [Copy];
    before_a_copy_behind_the_end_are_zeros [Copy];
    a_file_is_copied_within_itself [Copy];
    a_copy_is_a_change_of_its_target [Copy];
    what_is_unstable_is_copied [Copy];
    copying_needs_rights [Copy];
    senseless_copies_are_refused [Copy];
    without_copies_that_is_said;
}

/// Bytes that differ from place to place, and by `seed`.
fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let byte = |at: u64| (seed.wrapping_add(at).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    (0..len as u64).map(byte).collect()
}

impl Bench {
    async fn copy(&self, from: (&Handle, u64), to: (&Handle, u64), len: u64) -> Result<u64> {
        self.copied(from, to, len).await.map(|copied| copied.len)
    }

    async fn copied(
        &self,
        from: (&Handle, u64),
        to: (&Handle, u64),
        len: u64,
    ) -> Result<RemoteCopied> {
        let (from, to) = (CopyEnd::unopened(from.0, from.1), CopyEnd::unopened(to.0, to.1));
        self.remote.copy_range(&self.owner, from, to, len).await
    }

    /// Copies until there is no more, as copy_file_range(2) is used. Answers how much.
    async fn copy_all(&self, from: (&Handle, u64), to: (&Handle, u64), len: u64) -> Outcome<u64> {
        let mut done = 0;
        while done < len {
            let (from, to) = ((from.0, from.1 + done), (to.0, to.1 + done));
            let copied = works("copy", self.copy(from, to, len - done).await)?;
            holds("no more than asked", copied <= len - done)?;
            if copied == 0 {
                break;
            }
            done += copied;
        }
        Ok(done)
    }

    /// Checks size and bytes of a file.
    async fn contains(&self, file: &Handle, wanted: &[u8]) -> Outcome {
        same("size", self.attr(file).await?.size, wanted.len() as u64)?;
        self.reads(file, 0, wanted.len() as u32 + 1, wanted, true).await
    }
}

async fn a_copied_range_has_the_bytes_of_its_source(bench: Bench) -> Outcome {
    let (source, mut model) = (bytes(1, 50_000), bytes(2, 40_000));
    let (from, to) = (bench.file("from", &source).await?, bench.file("to", &model).await?);
    for (start, target, len) in [
        (0, 0, 4096),
        (8192, 4096, 12_288),
        (1, 0, 1),
        (4095, 20_001, 4098),
        (10_000, 39_000, 7_000),
        (3, 46_000, 33_333),
    ] {
        same("copied", bench.copy_all((&from, start), (&to, target), len).await?, len)?;
        let (start, target, len) = (start as usize, target as usize, len as usize);
        model.resize(model.len().max(target + len), 0);
        model[target..target + len].copy_from_slice(&source[start..start + len]);
        bench.contains(&to, &model).await?;
    }
    bench.contains(&from, &source).await
}

async fn a_long_file_is_copied_whole(bench: Bench) -> Outcome {
    // More than servers are known to copy at once.
    let source = bytes(3, (17 << 20) + 5);
    let from = bench.file("from", &source).await?;
    let to = bench.make("to", New::File).await?.handle;
    let len = source.len() as u64;
    same("copied", bench.copy_all((&from, 0), (&to, 0), len + 100).await?, len)?;
    same("size", bench.attr(&to).await?.size, len)?;
    for at in [0, (16 << 20) - 100, (17 << 20) - 100] {
        let end = source.len().min(at + 200);
        bench.reads(&to, at as u64, 200, &source[at..end], end == source.len()).await?;
    }
    Ok(())
}

async fn a_copy_ends_where_its_source_ends(bench: Bench) -> Outcome {
    let source = bytes(4, 10_000);
    let from = bench.file("from", &source).await?;
    let to = bench.make("to", New::File).await?.handle;
    same("copied", bench.copy((&from, 4000), (&to, 0), 1 << 40).await, Ok(6000))?;
    bench.contains(&to, &source[4000..]).await?;
    for behind in [10_000, 10_001, 1 << 40] {
        same("behind the end", bench.copy((&from, behind), (&to, 0), 10).await, Ok(0))?;
    }
    bench.contains(&to, &source[4000..]).await
}

async fn before_a_copy_behind_the_end_are_zeros(bench: Bench) -> Outcome {
    let (source, mut model) = (bytes(5, 3000), bytes(6, 100));
    let (from, to) = (bench.file("from", &source).await?, bench.file("to", &model).await?);
    same("copied", bench.copy_all((&from, 0), (&to, 70_001), 3000).await?, 3000)?;
    model.resize(70_001, 0);
    model.extend(&source);
    bench.contains(&to, &model).await
}

async fn a_file_is_copied_within_itself(bench: Bench) -> Outcome {
    let mut model = bytes(7, 30_000);
    let file = bench.file("a", &model).await?;
    for (start, target, len) in [(0, 20_000, 10_000), (25_000, 1, 5000), (0, 30_000, 30_000)] {
        same("copied", bench.copy_all((&file, start), (&file, target), len).await?, len)?;
        let (start, target, len) = (start as usize, target as usize, len as usize);
        let part = model[start..start + len].to_vec();
        model.resize(model.len().max(target + len), 0);
        model[target..target + len].copy_from_slice(&part);
        bench.contains(&file, &model).await?;
    }
    Ok(())
}

async fn a_copy_is_a_change_of_its_target(bench: Bench) -> Outcome {
    let from = bench.file("from", &bytes(8, 9000)).await?;
    let to = bench.file("to", &bytes(9, 9000)).await?;
    let (source, before) = (bench.attr(&from).await?, bench.attr(&to).await?);
    let told = works("copy", bench.copied((&from, 0), (&to, 0), 9000).await)?.change;
    let after = bench.attr(&to).await?;
    holds("another version", !after.validator().same(&before.validator()))?;
    let source_after = bench.attr(&from).await?;
    holds("the source's stays", source_after.validator().same(&source.validator()))?;
    if let Some(told) = told.after {
        same("what was told", told.validator().same(&after.validator()), true)?;
    }
    holds("nobody else was before it", told.before.is_none() || told.follows(&before.validator()))
}

async fn what_is_unstable_is_copied(bench: Bench) -> Outcome {
    let from = bench.make("from", New::File).await?.handle;
    let to = bench.make("to", New::File).await?.handle;
    bench.put_unstable(&from, 0, &bytes(10, 20_000)).await?;
    bench.put_unstable(&to, 10_000, &bytes(11, 20_000)).await?;
    same("copied", bench.copy_all((&from, 0), (&to, 0), 20_000).await?, 20_000)?;
    let model = [bytes(10, 20_000), bytes(11, 20_000)[10_000..].to_vec()].concat();
    bench.contains(&to, &model).await
}

async fn copying_needs_rights(bench: Bench) -> Outcome {
    let from = bench.file("from", &bytes(12, 5000)).await?;
    let to = bench.file("to", &bytes(13, 5000)).await?;
    let denied = [Error::AccessDenied, Error::NotPermitted];
    let (one, other) = (CopyEnd::unopened(&from, 0), CopyEnd::unopened(&to, 0));
    let refusal = bench.remote.copy_range(&bench.other, one, other, 100).await;
    refused("to a file of another", refusal, &denied)?;
    let secret = super::bench::mode(0o600);
    works("chmod", bench.remote.setattr(&bench.owner, &from, secret, None).await)?;
    let open_to_all = super::bench::mode(0o666);
    works("chmod", bench.remote.setattr(&bench.owner, &to, open_to_all, None).await)?;
    let refusal = bench.remote.copy_range(&bench.other, one, other, 100).await;
    refused("from a file of another", refusal, &denied)?;
    bench.contains(&to, &bytes(13, 5000)).await
}

async fn senseless_copies_are_refused(bench: Bench) -> Outcome {
    let file = bench.file("a", &bytes(14, 5000)).await?;
    let invalid = [Error::InvalidArgument];
    refused("overlap", bench.copy((&file, 0), (&file, 100), 200).await, &invalid)?;
    refused("itself", bench.copy((&file, 0), (&file, 0), 200).await, &invalid)?;
    refused("nothing", bench.copy((&file, 0), (&file, 1000), 0).await, &invalid)?;
    let far = bench.copy((&file, 0), (&file, u64::MAX - 10), 100).await;
    refused("behind all files", far, &[Error::FileTooLarge])?;
    let dir = bench.directory("d").await?;
    let no_file = [Error::IsDirectory, Error::InvalidArgument, Error::AccessDenied];
    refused("from a directory", bench.copy((&dir, 0), (&file, 0), 10).await, &no_file)?;
    refused("to a directory", bench.copy((&file, 0), (&dir, 0), 10).await, &no_file)?;
    bench.contains(&file, &bytes(14, 5000)).await
}

/// Whatever the server can do, its methods and its answers must agree.
async fn without_copies_that_is_said(bench: Bench) -> Outcome {
    let from = bench.file("from", &bytes(15, 5000)).await?;
    let to = bench.file("to", &bytes(16, 5000)).await?;
    let copied = bench.copy((&from, 0), (&to, 0), 100).await;
    if !bench.remote.copies() {
        same("copy", copied, Err(Error::NotSupported))?;
    }
    if copied.is_err() {
        bench.contains(&to, &bytes(16, 5000)).await?;
    }
    bench.contains(&from, &bytes(15, 5000)).await
}
