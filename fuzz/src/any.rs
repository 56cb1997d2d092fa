//! Which values harnesses are given: mostly small ones, and the edges of each type often.
//!
//! Bytes are of three kinds, since most parsers read text: any, printable ASCII, and pieces of few
//! different bytes. One input in some dozens has up to 4 KiB.

use proptest::collection::vec;
use proptest::num::f64::ANY;
use proptest::prelude::{BoxedStrategy, Just, Strategy, any};
use proptest::prop_oneof;
use std::fmt::Debug;

/// The most values in a list, and the most bytes in a short text.
const MANY: usize = 48;
/// The most bytes.
const BYTES_MAX: usize = 4_096;

/// A type that harnesses can take.
pub trait Any: Debug + Clone + 'static {
    /// Its values.
    fn any() -> BoxedStrategy<Self>;

    /// Lists of its values.
    fn lists() -> BoxedStrategy<Vec<Self>> {
        vec(Self::any(), 0..=MANY).boxed()
    }
}

impl Any for u8 {
    fn any() -> BoxedStrategy<u8> {
        any::<u8>().boxed()
    }

    fn lists() -> BoxedStrategy<Vec<u8>> {
        let few = vec(b' '..=b'~', 1..=4).prop_flat_map(|few| {
            let one = (0..few.len()).prop_map(move |index| few[index]);
            vec(one, 0..=MANY)
        });
        prop_oneof![
            12 => vec(any::<u8>(), 0..=MANY),
            6 => vec(b' '..=b'~', 0..=MANY),
            3 => few,
            1 => vec(any::<u8>(), 0..=BYTES_MAX),
        ]
        .boxed()
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Any for $number {
            fn any() -> BoxedStrategy<$number> {
                prop_oneof![
                    4 => any::<$number>(),
                    3 => 0..=(100 as $number),
                    1 => Just(<$number>::MIN),
                    1 => Just(<$number>::MAX),
                ]
                .boxed()
            }
        }
    )*};
}

numbers!(u16, i64);

impl Any for f64 {
    fn any() -> BoxedStrategy<f64> {
        prop_oneof![4 => ANY, 3 => -100.0..100.0, 1 => Just(0.0)].boxed()
    }
}

impl Any for bool {
    fn any() -> BoxedStrategy<bool> {
        any::<bool>().boxed()
    }
}

impl Any for String {
    fn any() -> BoxedStrategy<String> {
        let of_bytes = u8::lists().prop_map(|text| String::from_utf8_lossy(&text).into_owned());
        let of_chars = vec(any::<char>(), 0..=MANY).prop_map(String::from_iter);
        prop_oneof![of_bytes, of_chars].boxed()
    }
}

impl<T: Any> Any for Vec<T> {
    fn any() -> BoxedStrategy<Vec<T>> {
        T::lists()
    }
}

impl<A: Any, B: Any> Any for (A, B) {
    fn any() -> BoxedStrategy<(A, B)> {
        (A::any(), B::any()).boxed()
    }
}

impl<A: Any, B: Any, C: Any> Any for (A, B, C) {
    fn any() -> BoxedStrategy<(A, B, C)> {
        (A::any(), B::any(), C::any()).boxed()
    }
}
