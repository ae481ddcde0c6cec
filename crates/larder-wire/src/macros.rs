//! The three shapes of XDR declarations. Each line of an RFC's XDR is written once; both
//! directions, and the samples that the tests draw, follow from it.

/// A structure: its fields in order.
///
/// Fields bear the RFC's names and carry no comment of their own: the RFC is their documentation.
macro_rules! xdr_struct {
    ($( $(#[$meta:meta])* $name:ident { $( $field:ident : $type:ty ),* $(,)? } )+) => { $(
        $(#[$meta])*
        #[allow(missing_docs)]
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name { $( pub $field: $type ),* }

        #[allow(unused_variables, reason = "a structure may be empty")]
        impl $crate::xdr::Encode for $name {
            fn encode(&self, out: &mut $crate::xdr::Encoder) {
                $( self.$field.encode(out); )*
            }
        }

        #[allow(unused_variables, reason = "a structure may be empty")]
        impl $crate::xdr::Decode for $name {
            fn decode(input: &mut ::bytes::Bytes) -> Result<Self, $crate::xdr::XdrError> {
                Ok($name { $( $field: $crate::xdr::Decode::decode(input)? ),* })
            }
        }

        #[cfg(test)]
        #[allow(unused_variables, reason = "a structure may be empty")]
        impl $crate::sample::Sample for $name {
            fn sample(source: &mut $crate::sample::Source<'_>) -> Self {
                $name { $( $field: $crate::sample::Sample::sample(source) ),* }
            }
        }
    )+ };
}

/// A newtype: a value with a meaning of its own, encoded as the value that it holds.
macro_rules! xdr_newtype {
    ($( $(#[$meta:meta])* $name:ident($type:ty); )+) => { $(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub $type);

        impl $crate::xdr::Encode for $name {
            fn encode(&self, out: &mut $crate::xdr::Encoder) {
                self.0.encode(out);
            }
        }

        impl $crate::xdr::Decode for $name {
            fn decode(input: &mut ::bytes::Bytes) -> Result<Self, $crate::xdr::XdrError> {
                $crate::xdr::Decode::decode(input).map($name)
            }
        }

        #[cfg(test)]
        impl $crate::sample::Sample for $name {
            fn sample(source: &mut $crate::sample::Source<'_>) -> Self {
                $name($crate::sample::Sample::sample(source))
            }
        }
    )+ };
}

/// An enumeration, closed: other values do not decode.
macro_rules! xdr_enum {
    ($( $(#[$meta:meta])* $name:ident { $( $variant:ident = $value:literal ),* $(,)? } )+) => { $(
        $(#[$meta])*
        #[allow(missing_docs)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum $name { $( $variant = $value ),* }

        impl TryFrom<u32> for $name {
            type Error = $crate::xdr::XdrError;
            fn try_from(value: u32) -> Result<Self, $crate::xdr::XdrError> {
                match value {
                    $( $value => Ok($name::$variant), )*
                    other => Err($crate::xdr::XdrError::Discriminant(other)),
                }
            }
        }

        impl $crate::xdr::Encode for $name {
            fn encode(&self, out: &mut $crate::xdr::Encoder) {
                out.put_u32(*self as u32);
            }
        }

        impl $crate::xdr::Decode for $name {
            fn decode(input: &mut ::bytes::Bytes) -> Result<Self, $crate::xdr::XdrError> {
                <u32 as $crate::xdr::Decode>::decode(input)?.try_into()
            }
        }

        #[cfg(test)]
        impl $crate::sample::Sample for $name {
            fn sample(source: &mut $crate::sample::Source<'_>) -> Self {
                source.choose(&[ $( $name::$variant ),* ])
            }
        }
    )+ };
}

/// A discriminated union whose arms are empty or hold one value.
macro_rules! xdr_union {
    ($( $(#[$meta:meta])* $name:ident { $( $value:literal => $(#[$variant_meta:meta])* $variant:ident $( ( $type:ty ) )? ),* $(,)? } )+) => { $(
        $(#[$meta])*
        #[allow(missing_docs)]
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $name { $( $(#[$variant_meta])* $variant $( ( $type ) )? ),* }

        impl $crate::xdr::Encode for $name {
            fn encode(&self, out: &mut $crate::xdr::Encoder) {
                match self { $(
                    xdr_union!(@pattern $name $variant value $( $type )?) => {
                        out.put_u32($value);
                        xdr_union!(@encode value out $( $type )?);
                    }
                )* }
            }
        }

        impl $crate::xdr::Decode for $name {
            fn decode(input: &mut ::bytes::Bytes) -> Result<Self, $crate::xdr::XdrError> {
                Ok(match <u32 as $crate::xdr::Decode>::decode(input)? {
                    $( $value => $name::$variant $( ( <$type as $crate::xdr::Decode>::decode(input)? ) )?, )*
                    other => return Err($crate::xdr::XdrError::Discriminant(other)),
                })
            }
        }

        #[cfg(test)]
        impl $crate::sample::Sample for $name {
            fn sample(source: &mut $crate::sample::Source<'_>) -> Self {
                let arm = source.choose(&[ $( $value ),* ]);
                match arm {
                    $( $value => $name::$variant $( ( <$type as $crate::sample::Sample>::sample(source) ) )?, )*
                    _ => unreachable!("chosen from the arms"),
                }
            }
        }
    )+ };
    (@pattern $name:ident $variant:ident $value:ident) => { $name::$variant };
    (@pattern $name:ident $variant:ident $value:ident $type:ty) => { $name::$variant($value) };
    (@encode $value:ident $out:ident) => {};
    (@encode $value:ident $out:ident $type:ty) => { $crate::xdr::Encode::encode($value, $out) };
}

/// The procedure of each type of arguments, and the type of its answer.
macro_rules! procedures {
    ($program:expr, $version:expr; $( $number:literal $args:ty => $res:ty ),+ $(,)?) => { $(
        impl $crate::Procedure for $args {
            type Res = $res;
            const PROGRAM: u32 = $program;
            const VERSION: u32 = $version;
            const NUMBER: u32 = $number;
        }
    )+ };
}
