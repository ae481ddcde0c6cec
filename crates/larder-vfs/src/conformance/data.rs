//! Cases on bytes: reading, writing, their durability, sizes.

use std::task::Poll;

use bytes::Bytes;

use crate::{Error, New, SetAttr, Stability, Volatile};

use super::bench::{Bench, Outcome, holds, refused, same, works};

super::table! {
    read_of_an_empty_file;
    one_byte;
    unaligned_reads_and_writes;
    read_past_the_end;
    read_and_write_beyond_one_request;
    holes_are_zeros;
    far_away_writes;
    write_of_nothing;
    overwrite_in_the_middle;
    truncate_and_extend;
    truncated_bytes_do_not_come_back;
    directories_have_no_data;
    stability_is_at_least_what_was_asked;
    unstable_then_commit;
    commit_of_nothing;
    write_beyond_the_largest_file;
    disjoint_writes_at_once;
}

fn size(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

/// Bytes that depend on their position.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 ^ (at / 65_536) as u8).collect()
}

async fn read_of_an_empty_file(bench: Bench) -> Outcome {
    let file = bench.make("a", New::File).await?;
    same("size", file.attr.size, 0)?;
    bench.reads(&file.handle, 0, 100, b"", true).await
}

async fn one_byte(bench: Bench) -> Outcome {
    let file = bench.file("a", b"x").await?;
    bench.reads(&file, 0, 1, b"x", true).await?;
    bench.reads(&file, 0, 4096, b"x", true).await?;
    same("size", bench.attr(&file).await?.size, 1)
}

async fn unaligned_reads_and_writes(bench: Bench) -> Outcome {
    let content = pattern(100_003);
    let file = bench.file("a", &content[..50_001]).await?;
    bench.put(&file, 50_001, &content[50_001..]).await?;
    for (offset, len) in [(0, 3), (4095, 2), (49_999, 5), (8191, 8195), (99_999, 4)] {
        let end = (offset + len).min(content.len());
        let wanted = &content[offset..end];
        bench.reads(&file, offset as u64, len as u32, wanted, end == content.len()).await?;
    }
    Ok(())
}

async fn read_past_the_end(bench: Bench) -> Outcome {
    let file = bench.file("a", b"12345").await?;
    bench.reads(&file, 3, 100, b"45", true).await?;
    bench.reads(&file, 5, 100, b"", true).await?;
    bench.reads(&file, 1 << 40, 100, b"", true).await
}

async fn read_and_write_beyond_one_request(bench: Bench) -> Outcome {
    let limits = bench.remote.limits();
    // A server with huge requests is asked for at most 9 MiB.
    let most = limits.read_max.max(limits.write_max).min(4 << 20) as usize;
    let content = pattern(2 * most + 12_345);
    let file = bench.file("a", &content).await?;
    bench.reads(&file, 0, content.len() as u32, &content, true).await?;
    bench.reads(&file, 7, (content.len() - 8) as u32, &content[7..content.len() - 1], false).await
}

async fn holes_are_zeros(bench: Bench) -> Outcome {
    let file = bench.file("a", b"begin").await?;
    bench.put(&file, 100_000, b"end").await?;
    same("size", bench.attr(&file).await?.size, 100_003)?;
    let mut wanted = vec![0; 100_003];
    wanted[..5].copy_from_slice(b"begin");
    wanted[100_000..].copy_from_slice(b"end");
    bench.reads(&file, 0, 200_000, &wanted, true).await
}

async fn far_away_writes(bench: Bench) -> Outcome {
    // Beyond what 32 bits can express.
    let at = (1 << 32) + 12_345;
    let file = bench.file("a", b"").await?;
    bench.put(&file, at, b"far").await?;
    same("size", bench.attr(&file).await?.size, at + 3)?;
    bench.reads(&file, at - 2, 10, b"\0\0far", true).await?;
    bench.reads(&file, 12_345, 3, b"\0\0\0", false).await
}

async fn write_of_nothing(bench: Bench) -> Outcome {
    let file = bench.file("a", b"x").await?;
    bench.put(&file, 1000, b"").await?;
    same("size", bench.attr(&file).await?.size, 1)
}

async fn overwrite_in_the_middle(bench: Bench) -> Outcome {
    let file = bench.file("a", b"0123456789").await?;
    bench.put(&file, 3, b"abc").await?;
    bench.reads(&file, 0, 99, b"012abc6789", true).await
}

async fn truncate_and_extend(bench: Bench) -> Outcome {
    let file = bench.file("a", b"0123456789").await?;
    let change = bench.set(&file, size(4)).await?;
    if let Some(after) = change.after {
        same("size in the answer", after.size, 4)?;
    }
    bench.reads(&file, 0, 99, b"0123", true).await?;
    bench.set(&file, size(6)).await?;
    bench.reads(&file, 0, 99, b"0123\0\0", true).await?;
    bench.set(&file, size(0)).await?;
    bench.reads(&file, 0, 99, b"", true).await
}

async fn truncated_bytes_do_not_come_back(bench: Bench) -> Outcome {
    let file = bench.file("a", &[b'x'; 10_000]).await?;
    bench.set(&file, size(5001)).await?;
    bench.put(&file, 9_999, b"y").await?;
    let mut wanted = vec![0; 10_000];
    wanted[..5001].fill(b'x');
    wanted[9_999] = b'y';
    bench.reads(&file, 0, 10_000, &wanted, true).await
}

async fn directories_have_no_data(bench: Bench) -> Outcome {
    let allowed = [Error::IsDirectory, Error::InvalidArgument];
    let read = bench.remote.read(&bench.owner, &bench.dir, None, 0, 1).await;
    refused("read", read, &allowed)?;
    let data = Bytes::from_static(b"x");
    let written =
        bench.remote.write(&bench.owner, &bench.dir, None, 0, data, Stability::FileSync).await;
    refused("write", written, &allowed)?;
    let set = bench.remote.setattr(&bench.owner, &bench.dir, size(0), None).await;
    refused("truncate", set, &allowed)
}

async fn stability_is_at_least_what_was_asked(bench: Bench) -> Outcome {
    let file = bench.file("a", b"").await?;
    let rank = |stability| match stability {
        Stability::Unstable => 0,
        Stability::Shared(_) => 1,
        Stability::DataSync => 2,
        Stability::FileSync => 3,
    };
    let shared = Stability::Shared(Volatile { copies: 1, due: None });
    let all = [Stability::Unstable, shared, Stability::DataSync, Stability::FileSync];
    for asked in all {
        let data = Bytes::from_static(b"x");
        let written = bench.remote.write(&bench.owner, &file, None, 0, data, asked).await;
        let got = works("write", written)?.stability;
        holds(&format!("{got:?} for {asked:?}"), rank(got) >= rank(asked))?;
    }
    Ok(())
}

async fn unstable_then_commit(bench: Bench) -> Outcome {
    let file = bench.file("a", b"").await?;
    let first = bench.put_unstable(&file, 0, b"one").await?;
    let second = bench.put_unstable(&file, 3, b"two").await?;
    let committed = works("commit", bench.remote.commit(&bench.owner, &file, None, 0..0).await)?;
    same("verifiers of one boot", [first, second], [committed.verifier; 2])?;
    let committed = works("commit", bench.remote.commit(&bench.owner, &file, None, 2..4).await)?;
    same("verifier of a part", committed.verifier, first)?;
    bench.reads(&file, 0, 99, b"onetwo", true).await
}

async fn commit_of_nothing(bench: Bench) -> Outcome {
    let file = bench.file("a", b"").await?;
    works("commit", bench.remote.commit(&bench.owner, &file, None, 0..0).await)?;
    works("commit past the end", bench.remote.commit(&bench.owner, &file, None, 5..9).await)
        .map(drop)
}

async fn write_beyond_the_largest_file(bench: Bench) -> Outcome {
    let max = bench.remote.limits().file_size_max;
    let file = bench.file("a", b"x").await?;
    let data = Bytes::from_static(b"xy");
    let allowed = [Error::FileTooLarge, Error::InvalidArgument, Error::NoSpace];
    let written = bench.remote.write(&bench.owner, &file, None, max - 1, data, Stability::FileSync);
    refused("write", written.await, &allowed)?;
    if let Some(more) = max.checked_add(1) {
        let set = bench.remote.setattr(&bench.owner, &file, size(more), None).await;
        refused("extend", set, &allowed)?;
    }
    same("size", bench.attr(&file).await?.size, 1)
}

async fn disjoint_writes_at_once(bench: Bench) -> Outcome {
    const PART_BYTES: usize = 10_001;
    let content = pattern(8 * PART_BYTES);
    let file = bench.file("a", b"").await?;
    let mut writes: Vec<_> = content
        .chunks(PART_BYTES)
        .enumerate()
        .map(|(part, bytes)| {
            let (offset, data) = ((part * PART_BYTES) as u64, Bytes::copy_from_slice(bytes));
            bench.remote.write(&bench.owner, &file, None, offset, data, Stability::FileSync)
        })
        .collect();
    let mut failed = None;
    // Polled in turn, so that all are in flight together.
    std::future::poll_fn(|context| {
        writes.retain_mut(|write| match write.as_mut().poll(context) {
            Poll::Ready(result) => {
                failed = failed.or(result.err());
                false
            }
            Poll::Pending => true,
        });
        if writes.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    same("what failed", failed, None)?;
    bench.reads(&file, 0, content.len() as u32, &content, true).await
}
