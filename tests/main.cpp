#define BOOST_TEST_MODULE kimik3
#include <boost/test/unit_test.hpp>
