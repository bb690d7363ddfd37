// {fmt} as an archive (OBELISK_STATIC): the definitions that its shared library has, from its
// headers.
#include <fmt/format-inl.h>

namespace fmt {
inline namespace v9 {
namespace detail {
template auto dragonbox::to_decimal(float x) noexcept -> dragonbox::decimal_fp<float>;
template auto dragonbox::to_decimal(double x) noexcept -> dragonbox::decimal_fp<double>;
template auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl(locale_ref) -> char;
template void buffer<char>::append(const char*, const char*);
template void vformat_to(buffer<char>&, basic_string_view<char>,
                         basic_format_args<buffer_context<char>>, locale_ref);
}  // namespace detail
}  // namespace v9
}  // namespace fmt
