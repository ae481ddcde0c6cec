//! The suite that every `Remote` must pass.
