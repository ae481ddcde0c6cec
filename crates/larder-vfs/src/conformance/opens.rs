//! Cases on opens: what they return, and what uses their tokens. A server without opens gives no
//! tokens, and passes too.

use bytes::Bytes;

use crate::{Access, Error, Handle, Intent, New, RemoteOpened, Removal, SetAttr, Stability, Token};

use super::bench::{Bench, Outcome, holds, mode, refused, same, works};

super::table! {
    an_open_describes_and_judges;
    an_open_judges_everybody [Modes];
    an_open_of_a_directory;
    an_open_of_what_is_gone;
    data_goes_by_a_token;
    a_closed_token_is_as_none;
    a_token_is_good_after_a_rename;
    opens_of_a_file_are_apart;
    what_is_written_by_one_open_is_read_by_another;
    a_file_is_cut_and_removed_while_it_is_open;
}

impl Bench {
    async fn open(&self, file: &Handle, intent: Intent) -> Outcome<RemoteOpened> {
        works("open", self.remote.open(&self.owner, file, intent).await)
    }

    async fn close(&self, token: Option<Token>) -> Outcome {
        let Some(token) = token else { return Ok(()) };
        works("close", self.remote.close(&self.owner, token).await)
    }

    async fn read_by(&self, file: &Handle, open: Option<&Token>, wanted: &[u8]) -> Outcome {
        let read = self.remote.read(&self.owner, file, open, 0, 99).await;
        let read = works("read by an open", read)?;
        same("bytes", &read.data[..], wanted)?;
        holds("the end was told", read.eof)
    }

    async fn write_by(
        &self,
        file: &Handle,
        open: Option<&Token>,
        content: &'static [u8],
        stability: Stability,
    ) -> Outcome<crate::Verifier> {
        let data = Bytes::from_static(content);
        let written = self.remote.write(&self.owner, file, open, 0, data, stability).await;
        works("write by an open", written).map(|written| written.verifier)
    }
}

async fn an_open_describes_and_judges(bench: Bench) -> Outcome {
    let file = bench.file("a", b"12345").await?;
    for intent in [Intent::LOOK, Intent::READ, Intent::READ_WRITE] {
        let opened = bench.open(&file, intent).await?;
        if let Some(attr) = opened.attr {
            same("size", attr.size, 5)?;
            same("number", attr.fileid, bench.attr(&file).await?.fileid)?;
        }
        let wanted = Access::READ | Access::MODIFY | Access::EXTEND;
        holds("the owner may read and write", opened.granted.contains(wanted))?;
        bench.close(opened.token).await?;
    }
    let some = Intent { rights: Access::READ, ..Intent::READ };
    same("what was asked", bench.open(&file, some).await?.granted, Access::READ)
}

async fn an_open_judges_everybody(bench: Bench) -> Outcome {
    let file = bench.file("a", b"12345").await?;
    for bits in [0o600, 0o640, 0o644, 0o666] {
        bench.set(&file, mode(bits)).await?;
        for intent in [Intent::READ, Intent::READ_WRITE] {
            let opened = works("open", bench.remote.open(&bench.other, &file, intent).await)?;
            let asked = bench.access(&bench.other, &file, intent.rights).await?;
            same(&format!("granted for {bits:o}"), opened.granted, asked)?;
            bench.close(opened.token).await?;
        }
    }
    Ok(())
}

async fn an_open_of_a_directory(bench: Bench) -> Outcome {
    let dir = bench.directory("a").await?;
    let opened = bench.open(&dir, Intent::LOOK).await?;
    holds("the owner may list it", opened.granted.contains(Access::READ | Access::LOOKUP))?;
    bench.make_in(&dir, "b", New::File).await?;
    bench.close(opened.token).await?;
    same("names", bench.list(&dir, 4096).await?.len(), 1)
}

async fn an_open_of_what_is_gone(bench: Bench) -> Outcome {
    let file = bench.file("a", b"").await?;
    works("remove", bench.remove(&bench.dir, "a", Removal::File).await)?;
    let opened = bench.remote.open(&bench.owner, &file, Intent::READ).await;
    refused("open", opened, &[Error::Stale])
}

async fn data_goes_by_a_token(bench: Bench) -> Outcome {
    let file = bench.file("a", b"12345").await?;
    let opened = bench.open(&file, Intent::READ_WRITE).await?;
    let open = opened.token.as_ref();
    bench.read_by(&file, open, b"12345").await?;
    let written = bench.write_by(&file, open, b"abc", Stability::Unstable).await?;
    let committed = bench.remote.commit(&bench.owner, &file, open, 0..0).await;
    same("verifier", works("commit", committed)?.verifier, written)?;
    bench.read_by(&file, open, b"abc45").await?;
    bench.write_by(&file, open, b"ABCDEF", Stability::FileSync).await?;
    bench.close(opened.token).await?;
    bench.reads(&file, 0, 99, b"ABCDEF", true).await
}

async fn a_closed_token_is_as_none(bench: Bench) -> Outcome {
    let file = bench.file("a", b"12345").await?;
    let opened = bench.open(&file, Intent::READ_WRITE).await?;
    let left = opened.token.clone();
    bench.close(opened.token).await?;
    bench.read_by(&file, left.as_ref(), b"12345").await?;
    bench.write_by(&file, left.as_ref(), b"abc", Stability::FileSync).await?;
    works("commit", bench.remote.commit(&bench.owner, &file, left.as_ref(), 0..0).await)?;
    bench.close(left).await?;
    bench.reads(&file, 0, 99, b"abc45", true).await
}

async fn a_token_is_good_after_a_rename(bench: Bench) -> Outcome {
    let file = bench.file("a", b"12345").await?;
    let opened = bench.open(&file, Intent::READ_WRITE).await?;
    let open = opened.token.as_ref();
    let (from, into) = (bench.directory("from").await?, bench.directory("into").await?);
    works("rename", bench.rename((&bench.dir, "a"), (&from, "b")).await)?;
    bench.read_by(&file, open, b"12345").await?;
    works("rename above", bench.rename((&bench.dir, "from"), (&into, "from")).await)?;
    bench.write_by(&file, open, b"abc", Stability::FileSync).await?;
    bench.file("a", b"another").await?;
    bench.read_by(&file, open, b"abc45").await?;
    bench.close(opened.token).await
}

async fn opens_of_a_file_are_apart(bench: Bench) -> Outcome {
    let file = bench.file("a", b"12345").await?;
    let one = bench.open(&file, Intent::READ_WRITE).await?;
    let two = bench.open(&file, Intent::READ).await?;
    let three = bench.open(&file, Intent::READ_WRITE).await?;
    bench.close(one.token).await?;
    bench.read_by(&file, two.token.as_ref(), b"12345").await?;
    bench.write_by(&file, three.token.as_ref(), b"abc", Stability::FileSync).await?;
    bench.close(two.token).await?;
    bench.read_by(&file, three.token.as_ref(), b"abc45").await?;
    // It is not closed explicitly.
    drop(three);
    bench.reads(&file, 0, 99, b"abc45", true).await
}

async fn what_is_written_by_one_open_is_read_by_another(bench: Bench) -> Outcome {
    let file = bench.file("a", b"12345").await?;
    let reader = bench.open(&file, Intent::READ).await?;
    let writer = bench.open(&file, Intent::READ_WRITE).await?;
    for content in [&b"abcde"[..], b"fghijk", b"lmnopqr"] {
        bench.write_by(&file, writer.token.as_ref(), content, Stability::Unstable).await?;
        bench.read_by(&file, reader.token.as_ref(), content).await?;
        same("size", bench.attr(&file).await?.size, content.len() as u64)?;
    }
    bench.close(writer.token).await?;
    bench.read_by(&file, reader.token.as_ref(), b"lmnopqr").await?;
    bench.close(reader.token).await
}

async fn a_file_is_cut_and_removed_while_it_is_open(bench: Bench) -> Outcome {
    let file = bench.file("a", b"12345").await?;
    let opened = bench.open(&file, Intent::READ_WRITE).await?;
    bench.set(&file, SetAttr { size: Some(3), ..SetAttr::default() }).await?;
    bench.read_by(&file, opened.token.as_ref(), b"123").await?;
    works("remove", bench.remove(&bench.dir, "a", Removal::File).await)?;
    bench.stands_for(&bench.dir, "a", None).await?;
    bench.close(opened.token).await?;
    let read = bench.remote.read(&bench.owner, &file, None, 0, 1).await;
    refused("read of what is gone", read, &[Error::Stale])
}
